"""The cache folder: downloads, texts from standard input, and encoded texts."""

import atexit
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import platformdirs

log = logging.getLogger(__name__)

HASHED_BYTES = 2**26  # largest total size of files whose content is hashed to detect changes
STDIN_FOLDER = "stdin"  # name of the folder of texts from standard input, in the cache
UNUSED_S = 86_400  # seconds after which a text from standard input is removed from the cache


def cache_dir() -> Path:
    """Return the cache folder: `$XDG_CACHE_HOME/gpt`, or `gpt` in the platform's cache folder.

    If this folder cannot be written, as in a container whose user has no home, return a temporary
    folder that is deleted when the program ends.
    """
    return _usable(platformdirs.user_cache_path("gpt", appauthor=False))


@cache
def _usable(folder: Path) -> Path:
    above = next(each for each in (folder, *folder.parents) if os.path.exists(each))  # noqa: PTH110
    if folder.is_absolute() and os.access(above, os.W_OK | os.X_OK):
        return folder
    temporary = tempfile.TemporaryDirectory(prefix="gpt-")
    atexit.register(temporary.cleanup)
    log.warning(
        "%s: cannot write the cache folder; using a temporary one, so texts are prepared again by "
        "each command; set XDG_CACHE_HOME to a folder that you may write to",
        folder,
    )
    return Path(temporary.name)


def remove_unused_inputs() -> None:
    """Remove copies of standard input that are over a day old."""
    for text in (cache_dir() / STDIN_FOLDER).glob("*.txt"):
        if time.time() - text.stat().st_mtime > UNUSED_S:
            text.unlink(missing_ok=True)


def quick_sha256(paths: Sequence[Path]) -> str:
    """Return a hash of the paths, sizes and contents of files.

    To save time, hash modification times instead of contents if the files have more than
    HASHED_BYTES bytes in total.
    """
    digest, status = hashlib.sha256(), [path.stat() for path in paths]
    is_small = sum(each.st_size for each in status) <= HASHED_BYTES
    for path, each in zip(paths, status, strict=True):
        digest.update(f"{path.absolute()}\0{each.st_size}\0".encode(errors="surrogateescape"))
        digest.update(path.read_bytes() if is_small else f"{each.st_mtime_ns}\0".encode())
    return digest.hexdigest()
