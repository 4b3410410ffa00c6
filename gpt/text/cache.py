"""The cache folder: downloads, texts from standard input, and encoded texts."""

import hashlib
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import platformdirs

SAMPLED_BLOCKS = 1024  # number of blocks that `sampled_sha256` reads
BLOCK_BYTES = 2**16  # largest size of each
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


def sampled_sha256(paths: Iterable[Path]) -> str:
    """Hash files by their names, sizes and SAMPLED_BLOCKS evenly spread blocks of their content.

    A single file of up to 64 MiB is hashed whole. For larger ones, or several files, the times of
    change are hashed, too: only a change that keeps size and time and lies between the blocks goes
    unnoticed. 100 GB take as long as 64 MiB.

    Raises:
        OSError: a file cannot be read.
    """
    digest, files, ends, total = hashlib.sha256(), [], [], 0
    for path in paths:
        status = path.stat()
        digest.update(f"{path.absolute()}\0{status.st_size}\0".encode(errors="surrogateescape"))
        if status.st_size:
            total += status.st_size
            files.append((path, status))
            ends.append(total)
    if total > SAMPLED_BLOCKS * BLOCK_BYTES or len(files) > 1:
        for _, status in files:
            digest.update(f"{status.st_mtime_ns}\0".encode())
    block, index = -(-total // SAMPLED_BLOCKS), 0
    for start in range(0, total, block or 1):
        while ends[index] <= start:
            index += 1
        path, status = files[index]
        with path.open("rb") as file:
            file.seek(start - (ends[index] - status.st_size))
            digest.update(file.read(min(block, BLOCK_BYTES)))
    return digest.hexdigest()
