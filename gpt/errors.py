"""Errors that are shown to the user as one message without a traceback, and helpers for messages.

GPTError (exit code 1)
  + UsageError (exit code 2)
  |   - ConfigError
  |   - DeviceError
  - TextError
  - CheckpointError
  - Unreadable
  - OutOfMemory
  - TrainingError
  - Interrupted (exit code 128 + the number of the signal)

Each message says what was found, what was expected and what to do.
"""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = ("gpt", "gpt.exe")  # file names of the installed command
MAX_LINE_CHARACTERS = 1000  # largest length of a line of a message, which may quote long input


class GPTError(Exception):
    """Base class of gpt's errors. Each argument is one line of the message."""

    exit_code = 1

    def __init__(self, *lines: object) -> None:
        super().__init__(*(without_middle(str(line), MAX_LINE_CHARACTERS) for line in lines))

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class UsageError(GPTError):
    """An argument or option is wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """A config file or `--set` has a wrong key or value, or two values contradict each other."""


class DeviceError(UsageError):
    """This machine does not have the requested device, precision or compiler."""


class TextError(GPTError):
    """The text cannot be found, read or decoded."""


class CheckpointError(GPTError):
    """A checkpoint is missing or damaged."""


class Unreadable(GPTError):
    """A run may be intact, but cannot be read now, or only by another version of gpt."""


class OutOfMemory(GPTError):
    """Training, sampling or another task would take more memory than is free."""


class TrainingError(GPTError):
    """Training cannot continue."""


class Interrupted(GPTError):
    """The user stopped the program. If training had begun, its state is saved."""

    exit_code = 130  # the code for Ctrl-C; `gpt train` sets the code of the received signal


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: `1 step`, `2,000 steps`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Join the first names, at most `most`, and count the others: `a.txt, b.txt and 2 more`."""
    others = len(names) - most
    return between.join(names[:most]) + (f" and {others:,} more" if others > 0 else "")


def command(*words: str) -> str:
    """Return a `gpt` command that the user can paste into the shell that started this program.

    If `gpt` started this process, the command begins with `gpt` or, if the shell does not find that
    name, with its path. In a notebook, it begins with Python's name or path, and `-m gpt`.
    """
    program = Path(sys.argv[0])
    if program.name in PROGRAMS:
        return shlex.join([as_typed(program), *words])
    return shlex.join([as_typed(Path(sys.executable)), "-m", "gpt", *words])


def resume_command(run: Path | str) -> str:
    """Return the command that resumes `run`; if Python called gpt, the call of `gpt.resume`."""
    if not _is_command_line():
        return f"gpt.resume({json.dumps(str(run), ensure_ascii=False)})"
    return command("train", "--resume", str(run))


def arguments(*names: str, **values: object) -> str:
    """Return arguments as the user types them, on the command line or in Python.

    On the command line, `arguments("run_dir")` returns `--run-dir`, and
    `arguments(run_dir="my run", overwrite=True)` returns `--run-dir 'my run' --overwrite`. In
    Python, they return `run_dir`, and `run_dir='my run', overwrite=True`.
    """
    if not _is_command_line():
        return ", ".join([*names, *(f"{name}={value!r}" for name, value in values.items())])
    options = list[str]()
    for name, value in (dict.fromkeys(names, True) | values).items():
        options.append("--" + name.replace("_", "-"))
        if value is not True:  # True stands for an option without a value
            options.append(str(value))
    return shlex.join(options)


def setting_arguments(*assignments: str) -> str:
    """Return arguments that change settings; each of the `assignments` is like `train.steps=9`.

    They are `--set train.steps=9` on the command line, and `settings=["train.steps=9"]` in Python.
    If the running command has no `--set`, return the assignments as they are; see `takes_settings`.
    """
    if not _is_command_line():
        return f"settings={json.dumps(assignments, ensure_ascii=False)}"
    prefix = "--set " if takes_settings() else ""
    return " ".join(f"{prefix}{shlex.quote(each)}" for each in assignments)


def takes_settings() -> bool:
    """Return whether the user can change settings: in Python, and by commands that have `--set`."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    return not _is_command_line() or words[:1] in (["train"], ["data"])


def _is_command_line() -> bool:
    """Return whether this process runs `gpt` or `python -m gpt`."""
    program = Path(sys.argv[0])
    return program.name in PROGRAMS or program.parts[-2:] == ("gpt", "__main__.py")


def as_typed(program: Path) -> str:
    """Return the file name of `program` if the shell finds it by that name, else its path."""
    is_found = program.parent == Path() or shutil.which(program.name) == str(program.absolute())
    return program.name if is_found else str(program)


def shown(text: str, longest: int = 80) -> str:
    """Return `text` on one line, with escapes, and shortened by `without_middle`."""
    text = without_middle(text, longest)  # escaping a long text is slow
    escaped = (c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return without_middle("".join(escaped), longest)


def without_middle(text: str, longest: int) -> str:
    """Return `text`; if it is longer than `longest` characters, replace its middle by `...`."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


def unescaped(text: str) -> str:
    r"""Replace the escapes `\n`, `\r`, `\t` and `\\` by their characters."""
    characters = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
    return re.sub(r"\\([nrt\\])", lambda match: characters[match[1]], text)
