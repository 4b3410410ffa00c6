"""The command line: exit codes, streams, and which commands there are.

Torch, and all that imports it, is imported inside the commands, so that help and config errors
appear at once.
"""

import errno
import io
import logging
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer

from gpt import __version__, status
from gpt.cli.attend import attend
from gpt.cli.data import data
from gpt.cli.explain import explain
from gpt.cli.help import WIDEST_HELP, Commands, CommandWithSettings, meant_by
from gpt.cli.options import log, terminal_width, wrapped
from gpt.cli.runs import runs
from gpt.cli.sample import sample
from gpt.cli.train import train
from gpt.errors import INTERRUPTED, GPTError, UsageError, command
from gpt.files import from_here, naming
from gpt.text.display import in_one_line, visible
from gpt.torchrun import is_first_to_fail, is_main

STOPPED = (INTERRUPTED, 128 + 15, 128 + 1)  # exit codes: by Ctrl-C, SIGTERM, SIGHUP
MAX_LINE = 1000  # characters of a message that are shown of each of its lines
ADVICE = {
    errno.ENOSPC: "make room on its disk, or write to another one",
    errno.EDQUOT: "make room in your quota, or write to another disk",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
    errno.ENAMETOOLONG: "use a shorter name",
}

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
    name_it, forgive = partial(naming, "standard output"), partial(suppress, OSError, ValueError)
    sys.stdout = cast(TextIO, _Guarded(sys.stdout or _nowhere(), name_it))
    sys.stderr = cast(TextIO, _Guarded(sys.stderr or _nowhere(), forgive))  # a run needs no reader
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # then refused as an unknown character
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    log.handlers = [_Notices() if is_main() else logging.NullHandler()]
    log.setLevel(logging.INFO)
    try:
        _check_working_folder()
        code = app(_with_resumed_run(sys.argv[1:]), standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)  # that of typer.Exit
    except SystemExit as done:
        if done.code in STOPPED and is_main():
            is_training = sys.argv[1:2] == ["train"]
            kept = "; a run keeps its last checkpoint, if it has one" if is_training else ""
            typer.echo(f"\ngpt: stopped at once{kept}", err=True)
        raise
    except Exception as error:
        if log.level == logging.DEBUG:
            raise
        message = f"gpt: {_message(error)}"
        if is_first_to_fail(message):
            typer.echo(wrapped(message, sys.stderr), err=True)
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


class _Guarded:
    """A stream that is written to and flushed within a context that handles its errors."""

    def __init__(self, stream: TextIO, context: Callable[[], AbstractContextManager[Any]]) -> None:
        self._stream, self._context = stream, context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._context():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._context():
            self._stream.flush()


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
    """Return what to tell the user: one line, or one for each argument of a GPTError.

    A file name with a line end in it cannot pass for a line of ours.
    """
    lines = error.args if isinstance(error, GPTError) else (_described(error),)
    return "\n".join(_shortened(in_one_line(str(line))) for line in lines)


def _shortened(line: str) -> str:
    """Cut out the middle of a very long line."""
    if len(line) <= MAX_LINE:
        return line
    return f"{line[: MAX_LINE * 2 // 3]} [...] {line[-MAX_LINE // 4 :]}"


def _described(error: Exception) -> str:
    """Return a line about an error that is not ours, with advice where there is any."""
    if hasattr(error, "format_message"):  # typer's, of a command line that cannot be parsed
        ctx = getattr(error, "ctx", None)
        told = error.format_message().replace("Input should be", "expected")
        told = re.sub(r", unable to parse string as an? \w+", "", told)
        if ctx is not None and hasattr(error, "possibilities"):  # an unknown option
            option = getattr(error, "option_name", "")
            told = f"No such option: {option}{meant_by(option, ctx)}"
        return f"{told}{_where_to_look(ctx)}"
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, OSError) and error.strerror:
        name = _shortened_name(
            str(from_here(str(error.filename)) if error.filename else "a file or stream")
        )
        advice = ADVICE.get(error.errno or 0)
        return f"{name}: {error.strerror}{f'; {advice}' if advice else ''}"
    if "failed to map segment" in first or "can't start new thread" in first:
        return (
            f"not enough memory to load torch ({first:.150}); raise the limit on memory (ulimit "
            f"-v) or on threads (ulimit -u), or close other programs"
        )
    if isinstance(error, MemoryError) or "alloc" in first or "out of memory" in first.lower():
        return (
            f"not enough memory ({first or 'MemoryError':.150}); use a smaller model.C, model.T or "
            f"train.batch_size, a larger train.accumulation, or fewer --num-samples"
        )
    if first.startswith("Invalid log settings"):
        return (
            f"the environment variable TORCH_LOGS is {os.environ.get('TORCH_LOGS', ''):.50}, which "
            f"torch does not know; unset it"
        )
    return f"{type(error).__name__}: {first:.300} (--debug shows where)"


def _shortened_name(name: str) -> str:
    return name if len(name) <= 255 else f"{name[:50]}... ({len(name):,} characters)"


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

        if record.args:  # a line end in an argument, such as a file name, makes no line
            given = cast(tuple[object, ...], record.args)
            args = (a if isinstance(a, int | float) else in_one_line(str(a)) for a in given)
            notice = visible(str(record.msg) % tuple(args))
        else:
            notice = in_one_line(record.getMessage())
        ended, in_terminal = hasattr(record, "ended"), sys.stderr.isatty()
        with tqdm.get_lock():  # type: ignore[no-untyped-call]
            if self._shows_status:
                sys.stderr.write("\r\x1b[K")
                self._shows_status = False
            if record.name != status.log.name or not (in_terminal or ended):
                tqdm.write(wrapped(notice, sys.stderr), file=sys.stderr)
            elif not ended:
                sys.stderr.write(f"\r{disp_trim(notice, terminal_width() - 1)}\x1b[K")
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
