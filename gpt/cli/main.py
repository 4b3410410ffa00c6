"""The command line: exit codes, streams, and which commands there are.

Torch, and all that imports it, is imported inside the commands, so that help and config errors
appear at once.
"""

import io
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer

from gpt import __version__
from gpt.cli.attend import attend
from gpt.cli.explain import explain
from gpt.cli.help import WIDEST_HELP, Commands, CommandWithSettings
from gpt.cli.options import log
from gpt.cli.sample import sample
from gpt.cli.train import train
from gpt.errors import INTERRUPTED, GPTError
from gpt.text.display import visible

app = typer.Typer(
    name="gpt",
    cls=Commands,
    help="A character-level GPT: train it on any text, watch it learn, sample from it.",
    epilog="Start with: gpt train --config quickstart",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help is up sooner
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST_HELP},
)


def main() -> NoReturn:
    """Run the command line; every way it can fail ends in one message and an exit code."""
    sys.stdin = sys.stdin or _nowhere("r")  # closed by whoever started us
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = cast(TextIO, _Told(sys.stderr or _nowhere()))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    log.handlers = [_Notices()]
    log.setLevel(logging.INFO)
    try:
        app(_with_resumed_run(sys.argv[1:]))
        sys.exit(0)
    except SystemExit as done:
        if done.code == INTERRUPTED:
            kept = "; a run keeps its last checkpoint" if sys.argv[1:2] == ["train"] else ""
            typer.echo(f"\ngpt: stopped at once{kept}", err=True)
        raise
    except Exception as error:
        if log.level == logging.DEBUG:
            raise
        typer.echo(f"gpt: {visible(_message(error))}", err=True)
        sys.exit(error.exit_code if isinstance(error, GPTError) else 1)


class _Told:
    """A stream whose reader may leave (`| head`, a closed terminal): no reason to lose a run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _with_resumed_run(arguments: list[str]) -> list[str]:
    """Options here have a value each; `train --resume` without one means the newest run."""
    if arguments[:1] != ["train"]:
        return arguments
    return [
        "--resume=" if argument == "--resume" and after.startswith("-") else argument
        for argument, after in zip(arguments, [*arguments[1:], "-"], strict=True)
    ]


def _nowhere(mode: str = "w") -> TextIO:
    return cast(TextIO, Path(os.devnull).open(mode, encoding="utf-8"))


def _message(error: Exception) -> str:
    if isinstance(error, GPTError):
        return str(error)
    first, *_ = str(error).splitlines() or [""]
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename or 'while reading or writing'}"
    if isinstance(error, MemoryError) or "alloc" in first or "out of memory" in first.lower():
        return (
            f"not enough memory ({first or 'MemoryError':.150}); use a smaller model.C, model.T or "
            f"train.batch_size, a larger train.accumulation, or fewer --num-samples"
        )
    return f"{type(error).__name__}: {first:.300} (--debug shows where)"


class _Notices(logging.Handler):
    """Writes notices to stderr, above the progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(visible(record.getMessage()), file=sys.stderr)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"gpt {__version__}")
        raise typer.Exit


app.command(cls=CommandWithSettings)(train)
app.command()(sample)
app.command()(attend)
app.command()(explain)
