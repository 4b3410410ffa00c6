"""What is kept of texts between runs: downloads, standard input, and encoded texts."""

import hashlib
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import platformdirs

SAMPLED_BLOCKS = 1024
BLOCK_BYTES = 2**16
STDIN_FOLDER = "stdin"  # folder of texts from standard input
UNUSED_S = 86_400  # age in seconds from which such a text is removed
LOCK = ".lock"  # in the folder of an encoded text, while a process prepares it


def cache_dir() -> Path:
    """Where it is kept: `$XDG_CACHE_HOME/gpt` or the platform's own."""
    return platformdirs.user_cache_path("gpt", appauthor=False)


def corpora_dir() -> Path:
    """Where encoded texts are kept, one folder for each text and way of reading it."""
    return cache_dir() / "corpora"


def clear() -> int:
    """Remove encoded texts, downloads and old standard input; return the number of bytes freed.

    A text that another process is preparing stays.
    """
    freed = remove_unused_inputs()
    for path in [*corpora_dir().glob("*"), *cache_dir().glob("*.txt")]:
        if path.is_dir():
            freed += _remove_unless_locked(path)
        else:  # a download, or ids as they were kept once
            freed += path.stat().st_size
            path.unlink()
    return freed


def remove_unused_inputs() -> int:
    """Remove texts from standard input that are a day old; return the number of bytes freed.

    A run that trains on one of them has a copy in its folder.
    """
    freed = 0
    for text in (cache_dir() / STDIN_FOLDER).glob("*.txt"):
        status = text.stat()
        if time.time() - status.st_mtime > UNUSED_S:
            freed += status.st_size
            text.unlink(missing_ok=True)
    return freed


def _remove_unless_locked(folder: Path) -> int:
    from filelock import FileLock, Timeout  # 0.1 s, which other commands need not take

    freed = 0
    with suppress(Timeout), FileLock(folder / LOCK, timeout=0):
        for path in folder.iterdir():
            if path.name != LOCK:  # for which another process may be waiting
                freed += path.stat().st_size
                path.unlink()
    return freed


def sampled_sha256(paths: Iterable[Path]) -> str:
    """A hash of files by their names, sizes, times of change and SAMPLED_BLOCKS blocks of content.

    The blocks are evenly spread over all the files: one file of up to 64 MiB is read whole, and
    any change of it changes the hash. Of more, a change that keeps size and time and falls between
    the blocks does not. It takes as long for 100 GB as for 64 MiB.

    Raises OSError if a file cannot be read.
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
        for _, status in files:  # content read whole needs no clock
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
