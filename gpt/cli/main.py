"""The command line: its commands, exit codes, streams and messages.

Torch, and all modules that import it, are imported inside the commands, so that help and config
errors appear at once.
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
from gpt.cli.help import suggested_command, suggested_option
from gpt.cli.options import MAX_COLUMNS, log, terminal_width, wrapped
from gpt.cli.runs import runs
from gpt.cli.sample import sample
from gpt.cli.train import train
from gpt.distributed.launch import is_first_to_fail, is_main
from gpt.errors import INTERRUPTED, GPTError, UsageError, command
from gpt.files import from_here, naming
from gpt.text.display import in_one_line, visible

STOPPED = (INTERRUPTED, 128 + 15, 128 + 1)  # exit codes after Ctrl-C, SIGTERM and SIGHUP
MAX_LINE = 1000  # characters of one line of a message; a longer one loses its middle
ADVICE = {
    errno.ENOSPC: "; make room on its disk, or write to another one",
    errno.EDQUOT: "; make room in your quota, or write to another disk",
    errno.EFBIG: "; raise the limit on the size of a file (ulimit -f)",
    errno.ENAMETOOLONG: "; use a shorter name",
}

app = typer.Typer(
    name="gpt",
    help="A character-level GPT: train it on any text, watch it learn, sample from it.",
    epilog="Start with: gpt train --config quickstart",
    rich_markup_mode=None,  # plain help appears sooner
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_COLUMNS},
)


def main() -> NoReturn:
    """Run the command line. Every failure ends in one message and an exit code."""
    _set_up_streams()
    log.handlers = [_Notices() if is_main() else logging.NullHandler()]
    log.setLevel(logging.INFO)
    try:
        _check_working_folder()
        code = app(_with_resumed_run(sys.argv[1:]), standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)  # an int after typer.Exit
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


def _set_up_streams() -> None:
    """Replace missing streams, and let an error of stdout name it and one of stderr be ignored."""

    def stream(now: TextIO | None, mode: str) -> TextIO:
        """Return a stream, or the null device if the parent closed it."""
        return now or cast(TextIO, Path(os.devnull).open(mode, encoding="utf-8"))

    sys.stdin = stream(sys.stdin, "r")
    if isinstance(sys.stdin, io.TextIOWrapper):  # bytes that are not UTF-8 become unknown
        sys.stdin.reconfigure(errors="surrogateescape")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    named, ignored = partial(naming, "standard output"), partial(suppress, OSError, ValueError)
    sys.stdout = cast(TextIO, _Guarded(stream(sys.stdout, "w"), named))
    sys.stderr = cast(TextIO, _Guarded(stream(sys.stderr, "w"), ignored))


def _check_working_folder() -> None:
    """Refuse a working folder that was removed: torch would end the process without a message."""
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            f"the working folder cannot be found ({error.strerror}): it was removed or moved; cd "
            f"to another"
        ) from None


class _Guarded:
    """A stream that is written and flushed within a context, which handles its errors."""

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
    """Give `train --resume` an empty value if it has none: typer has no optional values."""
    if arguments[:1] != ["train"]:
        return arguments
    return [
        "--resume=" if argument == "--resume" and after.startswith("-") else argument
        for argument, after in zip(arguments, [*arguments[1:], "-"], strict=True)
    ]


def _message(error: Exception) -> str:
    """Return the message of an error: a line for each argument of a GPTError, else one line.

    Newlines within a line, for example in a file name, are escaped.
    """
    if isinstance(error, GPTError):
        lines = error.args
    elif hasattr(error, "format_message"):
        lines = (_of_typer(error),)
    else:
        lines = (_of_system(error),)
    return "\n".join(_shortened(in_one_line(str(line))) for line in lines)


def _shortened(line: str) -> str:
    """Cut out the middle of a very long line."""
    if len(line) <= MAX_LINE:
        return line
    return f"{line[: MAX_LINE * 2 // 3]} [...] {line[-MAX_LINE // 4 :]}"


def _of_typer(error: Any) -> str:
    """Return the message of a command line that typer cannot parse, with a suggestion."""
    ctx = getattr(error, "ctx", None)
    text = error.format_message().replace("Input should be", "expected")
    text = re.sub(r", unable to parse string as an? \w+", "", text)
    if ctx is None:
        return text
    if option := getattr(error, "option_name", "") if hasattr(error, "possibilities") else "":
        text = f"No such option: {option}{suggested_option(option, ctx)}"
    elif word := re.fullmatch(r"No such command '(.*)'\.", text):
        text += suggested_command(word[1])
    name = [str(ctx.command.name)] if ctx.parent else []
    return f"{text} (see {command(*name, '--help')})"


def _of_system(error: Exception) -> str:
    """Return the message of an error from Python, the operating system or torch, with advice."""
    if isinstance(error, OSError) and error.strerror:
        name = str(from_here(str(error.filename)) if error.filename else "a file or stream")
        if len(name) > 255:
            name = f"{name[:50]}... ({len(name):,} characters)"
        return f"{name}: {error.strerror}{ADVICE.get(error.errno or 0, '')}"
    first = next((line for line in str(error).splitlines() if line.strip()), "")
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
        value = os.environ.get("TORCH_LOGS", "")
        return f"torch does not accept the environment variable TORCH_LOGS={value:.50}; unset it"
    return f"{type(error).__name__}: {first:.300} (--debug shows where)"


class _Notices(logging.Handler):
    """Write notices to stderr, above the progress bar if there is one.

    In a terminal, a status line (`gpt.status.phase`) is overwritten by the next notice and erased
    when its phase ends. Elsewhere it is an ordinary line.
    """

    _shows_status = False

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm
        from tqdm.utils import disp_trim

        if record.args:  # an argument, such as a file name, may contain newlines
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


for _command in (train, sample, attend, explain, runs, data):
    app.command()(_command)
