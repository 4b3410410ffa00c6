"""Option types and output functions that several commands share."""

import json
import logging
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from gpt.errors import as_typed
from gpt.terminal import visible

MAX_COLUMNS = 100  # widest line of help, tables and messages in a terminal

log = logging.getLogger("gpt")


def option(metavar: str, text: str, *, default: Any = None, **others: Any) -> Any:
    """Return a `typer.Option` that takes a value. `text` is its help; `others` are as in typer."""
    return typer.Option(default, metavar=metavar, help=text, **others)


def flag(name: str, text: str, **others: Any) -> Any:
    """Return a `typer.Option` that takes no value. `text` is its help; `others` as for `option`."""
    return typer.Option(False, name, help=text, **others)


JsonFlag = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")]
OverwriteFlag = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]
RunName = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="A run: its folder, or its name under runs/; default the newest."
    ),
]
AnyDevice = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.")]
WhichCheckpoint = Annotated[
    str,
    typer.Option(
        metavar="best|last|STEP",
        help="The checkpoint with the lowest val loss, the newest, or that of a step.",
    ),
]
TextNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT",
        help="A file, folder, glob, - for standard input, python-docs, python-source or "
        "tinyshakespeare; several are joined. .gz, .bz2, .xz, .zst, .zip and .tar are unpacked.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change a setting, such as train.steps=500 or data.encoding=cp1252; repeat for more. "
        "With several values, such as train.learning_rate=1e-3,2e-3, gpt train trains a sweep: a "
        "run for each combination.",
    ),
]


def terminal_width() -> int:
    """Return the terminal's width in columns: at most `MAX_COLUMNS`; 80 without a terminal."""
    return min(shutil.get_terminal_size().columns, MAX_COLUMNS)


def wrapped(text: str, stream: TextIO) -> str:
    """Break long lines of `text` between words if `stream` is a terminal; else return `text`."""
    if not stream.isatty():
        return text
    return "\n".join(
        textwrap.fill(line, terminal_width(), break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


def duration(seconds: float, digits: int = 1) -> str:
    """Format `seconds` in a suitable unit: `2.3 d`, `4.5 h`, `6.7 min`, `8.9 s` or `1.2 ms`."""
    for unit, size, least in (("d", 86_400, 2), ("h", 3600, 2), ("min", 60, 2), ("s", 1, 1)):
        if seconds >= least * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{1000 * seconds:.{digits}f} ms"


def show(text: str) -> None:
    """Print `text` to stdout and flush; if stdout is a terminal, replace control characters."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def show_json(tree: object) -> None:
    """Print `tree` as JSON on one line. Numbers that are not finite are printed as null."""
    finite = json.loads(json.dumps(tree), parse_constant=lambda _: None)
    show(json.dumps(finite) + "\n")


def tensorboard_command(folder: str) -> str:
    """Return the shell command that shows the runs in `folder` in TensorBoard."""
    program = as_typed(Path(sys.executable).with_name("tensorboard"))
    return shlex.join([program, "--logdir", folder])
