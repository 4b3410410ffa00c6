"""Checks of paths, atomic writes that survive a crash, and reads with a limit on size."""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gpt.errors import GPTError, UsageError, arguments

CHUNK_BYTES = 1 << 21  # number of bytes to read at a time; they fit into a processor's cache


def from_here(path: Path | str) -> Path:
    """Shorten `path` for a message: make it relative to the working folder if it lies inside."""
    path = Path(path)
    try:
        here = Path.cwd()
    except OSError:  # the working folder was removed
        return path
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path


def check_working_folder() -> None:
    """Raise GPTError if the working folder was deleted: importing torch would end the process."""
    try:
        Path.cwd()
    except OSError:
        raise GPTError("the working folder was deleted; change to another folder") from None


def check_out(path: Path, option: str, endings: Sequence[str], *, overwrite: bool = False) -> None:
    """Raise UsageError unless `path` ends in one of `endings` and a file can be written there.

    `overwrite` is whether an existing plain file may be replaced. The message quotes `option`, the
    command-line option that set `path`.
    """
    if path.suffix.lower() not in endings:
        raise UsageError(f"{option} {path}: expected a name that ends in {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(
            f"{option} {path}: expected a new name or a plain file to replace, not a link, folder, "
            f"pipe or device; choose another name"
        )
    if not overwrite:
        check_absent(path, option)


def check_absent(path: Path, option: str) -> None:
    """Raise UsageError if anything exists at `path`; the message quotes `option`."""
    if path.exists():
        raise UsageError(
            f"{option} {path}: it exists already; choose another name, or add "
            f"{arguments(overwrite=True)} to replace it"
        )


def write_atomically(path: Path, content: Iterable[bytes]) -> None:
    """Replace the content of `path`; after a crash, the file has its old content or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with naming(path):
        try:
            temporary.unlink(missing_ok=True)
            write_synced(temporary, content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_synced(path: Path, content: Iterable[bytes]) -> None:
    """Write a new file and sync it to the disk; raise FileExistsError if `path` exists."""
    with naming(path), path.open("xb") as file:
        file.writelines(content)
        sync(file)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Set the `filename` of any OSError raised in the `with` block to `path`."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def sync(file: BinaryIO) -> None:
    """Flush a file and wait until its content is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the file names in a folder are on the disk; do nothing on Windows."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bounded(path: Path, most: int) -> bytes:
    """Return the content of a file; raise OSError if it has more than `most` bytes."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content
