"""Formats of `gpt export`, and the check of its options --to and --out."""

from pathlib import Path

from gpt.errors import UsageError
from gpt.inspection.output import check_absent, check_out

CODE = "modeling_gpt.py"  # name of a file that only an export for transformers has
ENDINGS = {"html": ".html", "huggingface": ""}  # file suffix; "" for a folder


def check_export(to: str, out: Path, *, overwrite: bool = False) -> None:
    """Raise UsageError unless the format `to` exists and can be written to the path `out`.

    Args:
        to: the name of a format, one of `ENDINGS`.
        out: the file to write; for `huggingface`, the folder.
        overwrite: whether existing files at `out` may be replaced.
    """
    if to not in ENDINGS:
        raise UsageError(f"--to {to}: expected {' or '.join(ENDINGS)}")
    if ENDINGS[to]:
        check_out(out, endings=(ENDINGS[to],), overwrite=overwrite)
    elif out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UsageError(f"--out {out}: expected a folder, got a file; choose another name")
    elif not overwrite:
        check_absent(out)
    elif out.is_dir() and not (out / CODE).is_file() and [*out.glob("[!.]*")]:
        raise UsageError(
            f"--out {out}: expected a new or empty folder, or one that gpt exported, got one with "
            f"other files; choose another name"
        )
