"""The formats of `gpt export`, and the function that writes each of them.

A module of a format is imported only when a model is exported to this format.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpt.errors import UsageError
from gpt.export.exported_run import ExportedRun
from gpt.inspection.output import check_absent, check_out


@dataclass(frozen=True)
class ExportFormat:
    """A format of `gpt export`: how to write it, and how its file name ends (a folder: "")."""

    write: Callable[[ExportedRun, Path], None]
    ending: str


def _html(run: ExportedRun, out: Path) -> None:
    from gpt.export.html import export_html

    export_html(run, out)


def _huggingface(run: ExportedRun, out: Path) -> None:
    from gpt.export.huggingface import export_huggingface

    export_huggingface(run, out)


def _gguf(run: ExportedRun, out: Path) -> None:
    from gpt.export.gguf_file import export_gguf

    export_gguf(run, out)


FORMATS = {
    "html": ExportFormat(_html, ".html"),
    "huggingface": ExportFormat(_huggingface, ""),
    "gguf": ExportFormat(_gguf, ".gguf"),
}


def check_export(to: str, out: Path, *, overwrite: bool = False) -> None:
    """Raise UsageError unless the format `to` exists and can be written to the path `out`.

    Args:
        to: the name of a format, one of `FORMATS`.
        out: the file to write; for `huggingface`, the folder.
        overwrite: whether something may exist at `out`.
    """
    if to not in FORMATS:
        raise UsageError(f"--to {to}: expected {' or '.join(FORMATS)}")
    if FORMATS[to].ending:
        check_out(out, endings=(FORMATS[to].ending,), overwrite=overwrite)
    elif out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UsageError(f"--out {out}: expected a folder, got a file; choose another name")
    elif not overwrite:
        check_absent(out)


def export_run(run: ExportedRun, to: str, out: Path, *, overwrite: bool = False) -> None:
    """Write `run` to the path `out` in the format `to`, one of `FORMATS`.

    Args:
        run: the run to export.
        to: the name of a format, such as `html`.
        out: the file to write; for `huggingface`, the folder.
        overwrite: whether to replace what exists at `out`.

    Raises:
        UsageError: there is no such format, `out` cannot be written or exists already, or the
            format cannot represent the model.
    """
    check_export(to, out, overwrite=overwrite)
    FORMATS[to].write(run, out)
