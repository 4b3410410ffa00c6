"""Everything that a user can cause to go wrong, and the exit code each ends in.

A message says what was expected, what was got and what to do, in one piece, so that the
command line can print it as it stands.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

INTERRUPTED = 130  # exit code: by a second Ctrl-C, or by one where nothing is to be saved


class GPTError(Exception):
    """A failure that the user is told of in one message, without a traceback.

    The message has a line for each argument.
    """

    exit_code = 1

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class UsageError(GPTError):
    """The command line asked for something that cannot be done."""

    exit_code = 2


class ConfigError(UsageError):
    """A config file or `--set` holds a wrong key or value, or values that contradict each other."""


class DeviceError(UsageError):
    """The device, precision or compiler that was asked for is not to be had here."""


class TextError(GPTError):
    """The text cannot be found, read or decoded."""


class CheckpointError(GPTError):
    """A checkpoint is missing, damaged or not one of ours."""


class Unreadable(GPTError):
    """A file of a run is there but cannot be read now: nothing is known of its content."""


class OutOfMemory(GPTError):
    """What was asked for would take more memory than there is."""


class TrainingError(GPTError):
    """Training cannot continue."""


class Interrupted(GPTError):
    """The run was asked to stop, and its state is saved; by a signal, 128 + its number."""

    exit_code = INTERRUPTED


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, for a message: `1 step`, `2,000 steps`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first `most` names and the number of the others: `a.txt, b.txt and 2 more`."""
    others = len(names) - most
    return between.join(names[:most]) + (f" and {others:,} more" if others > 0 else "")


def command(*arguments: str) -> str:
    """A command of this program, for a message, as the shell that started it understands it.

    `gpt` if the shell finds that, else its path; from Python or a notebook, `python -m gpt`.
    """
    program = Path(sys.argv[0])
    if program.name in ("gpt", "gpt.exe"):
        return shlex.join([as_typed(program), *arguments])
    return shlex.join([as_typed(Path(sys.executable)), "-m", "gpt", *arguments])


def as_typed(program: Path) -> str:
    """The name of a program if the shell finds it by that, else its path."""
    found = shutil.which(program.name)
    by_name = program.parent == Path() or (
        found is not None and Path(found).parent == program.parent.absolute()
    )
    return program.name if by_name else str(program)


def shown(text: str, longest: int = 80) -> str:
    """Return `text` as a message quotes it: on one line, a long one without its middle."""
    text = text if text.isprintable() else ascii(text)[1:-1]
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


def unescaped(text: str) -> str:
    r"""Replace `\n`, `\r`, `\t` and `\\` by the characters that they stand for."""
    characters = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
    return re.sub(r"\\([nrt\\])", lambda match: characters[match[1]], text)
