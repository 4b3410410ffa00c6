"""Atomic writes that survive a crash or power cut, and reads with a limit on size and time."""

import errno
import os
import platform
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

LONGEST_READ_S = 60  # seconds until a read of a pipe or a slow disk is given up


def from_here(path: Path | str) -> Path:
    """Return `path` relative to the working folder if it is inside, for a message."""
    path = Path(path)
    try:
        here = Path.cwd()
    except OSError:  # the working folder was removed
        return path
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path


def write_atomically(path: Path, content: Iterable[bytes]) -> None:
    """Write a temporary file, sync it and rename it: readers see the old content or the new."""
    remove_stale(path.parent)
    temporary = temporary_beside(path)
    with naming(path):
        try:
            temporary.unlink(missing_ok=True)
            write_synced(temporary, content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def temporary_beside(path: Path) -> Path:
    """Return the name of a file to write and then rename to `path`."""
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.tmp")


def remove_stale(folder: Path) -> None:
    """Remove the temporary files that dead processes of this machine left in a folder."""
    for path in folder.glob(".*.tmp"):
        name = re.fullmatch(rf"\..*\.{re.escape(platform.node())}\.(\d{{1,9}})\.tmp", path.name)
        if name:
            import psutil  # takes 0.1 s and is rarely needed

            if not psutil.pid_exists(int(name[1])):
                with suppress(OSError):
                    path.unlink()


def write_synced(path: Path, content: Iterable[bytes]) -> None:
    """Write a new file and sync it to the disk.

    Raises:
        FileExistsError: there is a file or link of that name. Links are not followed.
    """
    with naming(path), path.open("xb") as file:
        file.writelines(content)
        sync(file)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Set the file name of an OSError to `path`: that of a full disk has none."""
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
    """Wait until the names of a folder's files are on the disk. Windows has no call for it."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bounded(path: Path, most: int) -> bytes:
    """Read at most `most` + 1 bytes of a file or pipe, so that the caller can refuse a longer one.

    Raises:
        OSError: the file cannot be read, or the read takes longer than `LONGEST_READ_S`.
    """
    results: list[bytes | OSError] = []

    def read() -> None:
        try:
            with path.open("rb") as file:
                results.append(file.read(most + 1))
        except OSError as error:
            results.append(error)

    reader = threading.Thread(target=read, daemon=True)  # a pipe without a writer blocks it
    reader.start()
    reader.join(LONGEST_READ_S)
    if not results:
        raise OSError(errno.ETIMEDOUT, f"it has no end after {LONGEST_READ_S} s", str(path))
    if isinstance(results[0], OSError):
        raise results[0]
    return results[0]
