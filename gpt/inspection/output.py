"""Check the path of a file to write, and write it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpt.errors import GPTError, UsageError
from gpt.files import write_atomically


def check_out(
    path: Path,
    option: str = "--out",
    endings: Sequence[str] = (".png", ".html"),
    *,
    overwrite: bool = False,
) -> None:
    """Raise UsageError unless `path` ends in one of `endings` and a file can be written there.

    Args:
        path: the file to write.
        option: the option that set `path`, for the message.
        endings: the allowed suffixes.
        overwrite: whether an existing plain file may be replaced.
    """
    if path.suffix.lower() not in endings:
        raise UsageError(f"{option} {path}: expected a name that ends in {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(
            f"{option} {path}: expected a new name or a plain file to replace, got a link, a "
            f"folder, a pipe or a device; choose another name"
        )
    if not overwrite:
        check_absent(path, option)


def check_absent(path: Path, option: str = "--out") -> None:
    """Raise UsageError, which quotes `option`, if anything exists at `path`."""
    if os.path.lexists(path):
        raise UsageError(
            f"{option} {path}: it exists already; choose another name, or add --overwrite "
            f"to replace it"
        )


def write_out(path: Path, content: bytes, option: str = "--out") -> None:
    """Write `content` to `path` atomically. Raise GPTError, which quotes `option`, on failure."""
    with writing(path, option):
        write_atomically(path, [content])


@contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[None]:
    """Convert an OSError in the `with` block to a GPTError, which quotes `path` and `option`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error  # numpy raises an OSError without strerror
        raise GPTError(f"{path}: cannot write it ({reason}); choose another {option}") from error
