"""Writing that a crash or a power cut cannot leave half done."""

import os
from collections.abc import Iterable
from pathlib import Path


def write_atomically(path: Path, content: Iterable[bytes]) -> None:
    """Write beside the path, sync, rename: a reader sees the old content or the new, never half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(content)
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, so that a power cut cannot undo it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
