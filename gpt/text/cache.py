"""The cache folder: downloads, texts from standard input, and encoded texts."""

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

HASHED_BYTES = 2**26  # largest size of files whose content is hashed to find a change
STDIN_FOLDER = "stdin"  # folder of texts from standard input
UNUSED_S = 86_400  # age in seconds from which such a text is removed
LOCK = ".lock"  # in the folder of an encoded text, while a process prepares it


def cache_dir() -> Path:
    """Return the cache folder: `$XDG_CACHE_HOME/gpt` or the platform's own."""
    return platformdirs.user_cache_path("gpt", appauthor=False)


def corpora_dir() -> Path:
    """Return the folder of encoded texts, which has a folder for each text and its settings."""
    return cache_dir() / "corpora"


def clear() -> int:
    """Remove encoded texts, downloads and old standard input; return the number of bytes freed.

    A text that another process is preparing stays.
    """
    from filelock import FileLock, Timeout  # takes 0.1 s, which other commands do not need

    freed = remove_unused_inputs() + sum(map(_remove, cache_dir().glob("*.txt")))
    for folder in corpora_dir().glob("*"):
        with suppress(Timeout), FileLock(folder / LOCK, timeout=0):
            freed += sum(_remove(path) for path in folder.iterdir() if path.name != LOCK)
    return freed


def remove_unused_inputs() -> int:
    """Remove texts from standard input that are a day old; return the number of bytes freed.

    Each run that trains on one of them has a copy in its folder.
    """
    texts = (cache_dir() / STDIN_FOLDER).glob("*.txt")
    return sum(_remove(text) for text in texts if time.time() - text.stat().st_mtime > UNUSED_S)


def _remove(path: Path) -> int:
    size = path.stat().st_size
    path.unlink(missing_ok=True)
    return size


def quick_sha256(paths: Sequence[Path]) -> str:
    """Hash files by their names, sizes and content.

    For files of more than HASHED_BYTES in all, the times of change are hashed instead of the
    content.

    Raises:
        OSError: a file cannot be read.
    """
    digest, status = hashlib.sha256(), [path.stat() for path in paths]
    is_small = sum(each.st_size for each in status) <= HASHED_BYTES
    for path, each in zip(paths, status, strict=True):
        digest.update(f"{path.absolute()}\0{each.st_size}\0".encode(errors="surrogateescape"))
        digest.update(path.read_bytes() if is_small else f"{each.st_mtime_ns}\0".encode())
    return digest.hexdigest()
