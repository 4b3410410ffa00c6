"""The command line: exit codes, streams, and which commands there are.

Torch, and all that imports it, is imported inside the commands, so that help and config errors
appear at once.
"""

import io
import logging
import os
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer

from gpt import __version__, status
from gpt.cli.attend import attend
from gpt.cli.data import data
from gpt.cli.explain import explain
from gpt.cli.help import WIDEST_HELP, Commands, CommandWithSettings
from gpt.cli.options import log, terminal_width
from gpt.cli.runs import runs
from gpt.cli.sample import sample
from gpt.cli.train import train
from gpt.errors import INTERRUPTED, GPTError, UsageError, command
from gpt.text.display import visible
from gpt.torchrun import is_first_to_fail, is_main

app = typer.Typer(
    name="gpt",
    cls=Commands,
    help="A character-level GPT: train it on any text, watch it learn, sample from it.",
    epilog="Start with: gpt train --config quickstart",
    rich_markup_mode=None,  # plain help is up sooner
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST_HELP},
)


def main() -> NoReturn:
    """Run the command line; every way it can fail ends in one message and an exit code."""
    sys.stdin = sys.stdin or _nowhere("r")  # closed by whoever started us
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = cast(TextIO, _BestEffortStream(sys.stderr or _nowhere()))
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # then refused as an unknown character
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    log.handlers = [_Notices() if is_main() else logging.NullHandler()]
    log.setLevel(logging.INFO)
    try:
        _check_working_folder()
        code = app(_with_resumed_run(sys.argv[1:]), standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)  # that of typer.Exit
    except SystemExit as done:
        if done.code == INTERRUPTED and is_main():
            kept = "; a run keeps its last checkpoint" if sys.argv[1:2] == ["train"] else ""
            typer.echo(f"\ngpt: stopped at once{kept}", err=True)
        raise
    except Exception as error:
        if log.level == logging.DEBUG:
            raise
        message = f"gpt: {visible(_message(error))}"
        if is_first_to_fail(message):
            typer.echo(_in_terminal(message), err=True)
        sys.exit(getattr(error, "exit_code", 1))


def _check_working_folder() -> None:
    """Raises UsageError if it was removed: torch and others end the process without a message."""
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            f"the working folder cannot be found ({error.strerror}): it was removed or moved; cd "
            f"to another"
        ) from None


class _BestEffortStream:
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


def _in_terminal(text: str) -> str:
    """The text with its lines broken between words, if a terminal shows it."""
    if not sys.stderr.isatty():
        return text
    return "\n".join(
        textwrap.fill(line, terminal_width(), break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


def _message(error: Exception) -> str:
    if isinstance(error, GPTError):
        return str(error)
    if hasattr(error, "format_message"):  # typer's, of a command line that cannot be parsed
        told = error.format_message().replace("Input should be", "expected")
        return f"{told}{_where_to_look(getattr(error, 'ctx', None))}"
    first, *_ = str(error).splitlines() or [""]
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename or 'while reading or writing'}"
    if isinstance(error, MemoryError) or "alloc" in first or "out of memory" in first.lower():
        return (
            f"not enough memory ({first or 'MemoryError':.150}); use a smaller model.C, model.T or "
            f"train.batch_size, a larger train.accumulation, or fewer --num-samples"
        )
    return f"{type(error).__name__}: {first:.300} (--debug shows where)"


def _where_to_look(ctx: typer.Context | None) -> str:
    if ctx is None:
        return ""
    name = [str(ctx.command.name)] if ctx.parent else []
    return f" (see {command(*name, '--help')})"


class _Notices(logging.Handler):
    """Write notices to stderr, above the progress bar if there is one.

    In a terminal, a status line (see `gpt.status.phase`) is replaced by whatever comes next, and
    erased when its phase ends. Elsewhere it is a line like any other.
    """

    _shows_status = False

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm
        from tqdm.utils import disp_trim

        text, ended = visible(record.getMessage()), hasattr(record, "ended")
        in_terminal = sys.stderr.isatty()
        with tqdm.get_lock():  # type: ignore[no-untyped-call]
            if self._shows_status:
                sys.stderr.write("\r\x1b[K")
                self._shows_status = False
            if record.name != status.log.name or not (in_terminal or ended):
                tqdm.write(_in_terminal(text), file=sys.stderr)
            elif not ended:
                sys.stderr.write(f"\r{disp_trim(text, terminal_width() - 1)}\x1b[K")
                self._shows_status = True
            sys.stderr.flush()


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"gpt {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(2)


app.command(cls=CommandWithSettings)(train)
app.command()(sample)
app.command()(attend)
app.command()(explain)
app.command()(runs)
app.command()(data)
