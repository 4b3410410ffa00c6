"""Writing that a crash or a power cut cannot leave half done."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, content: Iterable[bytes]) -> None:
    """Write beside the path, sync, rename: a reader sees the old content or the new, never half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_synced(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_synced(path: Path, content: Iterable[bytes]) -> None:
    """Write a file and wait until it is on the disk, so that a power cut cannot undo it."""
    with path.open("wb") as file:
        file.writelines(content)
        sync(file)


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
