"""The command line: its commands, exit codes, streams and messages.

Exit codes: 0 success; 1 failure; 2 wrong usage; 128 + the number of the signal that stopped gpt.
Torch, and all modules that import it, are imported inside the commands, so that help and config
errors appear at once.
"""

import csv
import errno
import io
import logging
import os
import re
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer
from typer.core import TyperGroup

from gpt import __version__, terminal
from gpt.cli.options import MAX_COLUMNS, log, terminal_width, wrapped
from gpt.distributed import is_first_to_fail, is_main
from gpt.errors import GPTError, command
from gpt.files import check_working_folder, from_here
from gpt.terminal import in_one_line, visible

MAX_CELL = 2**31 - 1  # csv's limit for a cell, in characters; a cell can contain a whole book
# errors of the system that mean that a file cannot be written
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
# regular expression that matches error messages about too little memory
NO_MEMORY = r"alloc|out of memory|failed to map segment|can't start new thread"
# options of other projects for the folder of a run
FOLDER_OPTIONS = {"name", "out", "out_dir", "output", "output_dir"}

COMMANDS = (
    *("train", "sample", "eval", "compare", "attend", "explain", "export", "serve", "runs"),
    "data",
)


class LazyCommands(TyperGroup):
    """The commands. The module of a command is imported when the command is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = cast(Any, dict.fromkeys(COMMANDS))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name, or None if there is none."""
        if cmd_name not in self.commands:
            return None
        module = import_module(f"gpt.cli.{cmd_name}")
        function = "evaluate" if cmd_name == "eval" else cmd_name
        alone = typer.Typer(rich_markup_mode=None, add_completion=False)
        alone.command(cmd_name)(getattr(module, function))
        return typer.main.get_command(alone)


app = typer.Typer(
    name="gpt",
    cls=LazyCommands,
    help="A character-level GPT: train it on any text, watch it learn, sample from it.",
    epilog="Start with: gpt train --config quickstart",
    rich_markup_mode=None,  # plain help appears sooner
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_COLUMNS},
)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, for any command.")
    ] = False,
) -> None:
    if debug:
        log.setLevel(logging.DEBUG)
    if version:
        typer.echo(f"gpt {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(2)


def main() -> NoReturn:
    """Run the command line. Every failure ends in one message and an exit code."""
    _set_up_streams()
    csv.field_size_limit(MAX_CELL)
    logging.getLogger("matplotlib").addHandler(logging.NullHandler())  # hide cache messages
    log.handlers = [_Notices() if is_main() else logging.NullHandler()]
    log.setLevel(logging.INFO)
    arguments = sys.argv[1:]
    if arguments[:1] == ["train"]:  # --resume may lack a value, which typer does not support
        arguments = [
            "--resume=" if argument == "--resume" and after.startswith("-") else argument
            for argument, after in zip(arguments, [*arguments[1:], "-"], strict=True)
        ]
    if "--debug" in arguments:  # --debug may stand after the name of a command, too
        arguments = ["--debug", *(each for each in arguments if each != "--debug")]
    try:
        check_working_folder()
        code = app(arguments, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)  # after typer.Exit, `code` is an int
    except SystemExit as done:
        if isinstance(done.code, int) and done.code > 128 and is_main():
            typer.echo("\ngpt: stopped at once", err=True)
        raise
    except Exception as error:
        lines = error.args if isinstance(error, GPTError) else (_message(error),)
        if lines and log.level == logging.DEBUG:
            raise
        message = "gpt: " + "\n".join(in_one_line(str(line)) for line in lines)
        if lines and is_first_to_fail():
            typer.echo(wrapped(message, sys.stderr), err=True)
        sys.exit(getattr(error, "exit_code", 1))


def _set_up_streams() -> None:
    """Replace closed streams by the null device, and set how the standard streams handle errors.

    Bytes that cannot be decoded, and characters that cannot be encoded, are escaped. Write errors
    of stderr are ignored.
    """

    def null_device(mode: str) -> TextIO:
        return cast(TextIO, Path(os.devnull).open(mode, encoding="utf-8"))

    sys.stdin = sys.stdin or null_device("r")
    if isinstance(sys.stdin, io.TextIOWrapper):  # bytes that are not UTF-8 become surrogates
        sys.stdin.reconfigure(errors="surrogateescape")
    sys.stdout = sys.stdout or null_device("w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = cast(TextIO, _Unfailing(sys.stderr or null_device("w")))


class _Unfailing:
    """Stream that ignores write errors, so that training continues if the terminal is closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def _message(error: Exception) -> str:
    """Return the message to print for an exception of typer, Python, the system or torch."""
    if hasattr(error, "format_message"):
        return _usage_message(error)
    if isinstance(error, OSError) and error.strerror:
        name = from_here(str(error.filename)) if error.filename else "a file or standard output"
        is_denied = error.filename and error.errno in DENIED
        advice = "; check its permissions and the free space" if is_denied else ""
        return f"{name}: {error.strerror}{advice}"
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, MemoryError) or re.search(NO_MEMORY, first, re.IGNORECASE):
        return (
            f"not enough memory ({first or 'MemoryError':.150}); use a smaller model.C, model.T, "
            f"train.batch_size or --num-samples, or close other programs"
        )
    return f"{type(error).__name__}: {first:.300} (--debug shows where)"


def _usage_message(error: Any) -> str:
    """Return the message for a wrong command line; for `gpt train`, suggest a similar setting."""
    ctx = getattr(error, "ctx", None)
    text = str(error.format_message()).replace("Input should be", "expected")
    text = re.sub(r", unable to parse string as an? \w+", "", text)
    if ctx is None:
        return text
    option = getattr(error, "option_name", None)
    if option and ctx.command.name == "train":
        from gpt.config.mistakes import nearest_setting
        from gpt.config.schema import SETTINGS

        name = option.strip("-")
        if name.replace("-", "_") in FOLDER_OPTIONS:
            text += "; did you mean --run-dir?"
        elif (key := nearest_setting(name)) in SETTINGS:
            text += f"; did you mean --set {key}=VALUE?"
    of_command = [str(ctx.command.name)] if ctx.parent else []
    return f"{text} (see {command(*of_command, '--help')})"


class _Notices(logging.Handler):
    """Logging handler that prints messages to stderr, above the progress bar if there is one.

    Messages of `gpt.terminal.phase` say what the program is doing. In a terminal, such a message is
    erased when the work ends or the next message is printed; elsewhere it stays.
    A notice about a text is printed only once, even if the text is read for several runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shows_status = False
        self._about_texts = set[str]()  # printed notices about texts

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False if `record` is a notice about a text, and was printed before; else True."""
        if not record.name.startswith("gpt.text."):
            return True
        notice, printed = record.getMessage(), len(self._about_texts)
        self._about_texts.add(notice)
        return len(self._about_texts) > printed

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
            if record.name != terminal.log.name or not (in_terminal or ended):
                # one write, so that a message of a signal handler cannot split the line
                tqdm.write(f"{wrapped(notice, sys.stderr)}\n", file=sys.stderr, end="")
            elif not ended:
                sys.stderr.write(f"\r{disp_trim(notice, terminal_width() - 1)}\x1b[K")
                self._shows_status = True
            sys.stderr.flush()
