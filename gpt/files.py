"""Writing that a crash or a power cut cannot leave half done, and reading that comes to an end."""

import errno
import os
import platform
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

LONGEST_READ_S = 60


def from_here(path: Path | str) -> Path:
    """Return the path, relative to the working folder if it is inside, for a message."""
    path = Path(path)
    try:
        here = Path.cwd()
    except OSError:  # the working folder was removed
        return path
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path


def write_atomically(path: Path, content: Iterable[bytes]) -> None:
    """Write beside the path, sync, rename: a reader sees the old content or the new, never half."""
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
    """The name of a file that is being written and will be renamed to `path`."""
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.tmp")


def remove_stale(folder: Path) -> None:
    """Remove the files in a folder that dead processes of this machine had begun to write."""
    for path in folder.glob(".*.tmp"):
        name = re.fullmatch(rf"\..*\.{re.escape(platform.node())}\.(\d{{1,9}})\.tmp", path.name)
        if name:
            import psutil  # 0.1 s, which is rarely needed

            if not psutil.pid_exists(int(name[1])):
                with suppress(OSError):
                    path.unlink()


def write_synced(path: Path, content: Iterable[bytes]) -> None:
    """Write a new file and wait until it is on the disk, so that a power cut cannot undo it.

    Raises FileExistsError if there is a file or link of that name: a link is not followed.
    """
    with naming(path), path.open("xb") as file:
        file.writelines(content)
        sync(file)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Name `path` in an OSError: that of a full disk names no file, others a temporary one."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def sync(file: BinaryIO) -> None:
    """Wait until what was written to a file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk. (Windows has no call for it.)"""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a file or pipe, if it is at most `most` bytes, else one byte more than that.

    Raises OSError if it cannot be read, or does not end within LONGEST_READ_S seconds.
    """
    content: list[bytes] = []
    failed: list[OSError] = []

    def read() -> None:
        try:
            with path.open("rb") as file:
                content.append(file.read(most + 1))
        except OSError as error:
            failed.append(error)

    reader = threading.Thread(target=read, daemon=True)  # waits for a pipe that nobody writes to
    reader.start()
    reader.join(LONGEST_READ_S)
    if failed:
        raise failed[0]
    if not content:
        raise OSError(errno.ETIMEDOUT, f"it has no end after {LONGEST_READ_S} s", str(path))
    return content[0]
