"""The cache folder: encoded and downloaded texts, and texts from standard input."""

import atexit
import hashlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import BinaryIO, TextIO
from uuid import uuid4

import platformdirs

from gpt.config.data_config import DataConfig
from gpt.errors import TextError
from gpt.files import CHUNK_BYTES, write_atomically

log = logging.getLogger(__name__)

HASHED_BYTES = 2**26  # largest total size of files whose content is hashed to detect changes
STDIN_FOLDER = "stdin"  # name of the folder of texts from standard input, in the cache
UNUSED_S = 86_400  # seconds after which the cached copy of a text from standard input is removed
STDIN = "-"
STORED_INPUT = "standard_input.txt"  # name of the copy of standard input in a run or sweep
_EXAMPLE = "pipe one in, such as: gpt train - < my.txt"


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


def reads_standard_input(data: DataConfig) -> bool:
    """Return whether the text or val text is standard input; raise TextError if both are."""
    texts = (data.source, data.val_source or ())
    uses = [STDIN in ([names] if isinstance(names, str) else names) for names in texts]
    if all(uses):
        raise TextError("-: standard input can be the text or the val text, not both")
    return any(uses)


def standard_input(folder: Path | None = None) -> Path:
    """Return the path of the copy of standard input in `folder`, a run or sweep.

    If there is no copy, copy standard input to the cache, and return the path of that copy.
    """
    stored = folder and folder / STORED_INPUT
    return stored if stored and stored.is_file() else _read(sys.stdin)


def store_standard_input(text: Path | None, folder: Path) -> None:
    """Copy `text` to `folder` unless a copy is there; do nothing if `text` is None."""
    stored = folder / STORED_INPUT
    if text is not None and not stored.exists():
        with text.open("rb") as file:
            write_atomically(stored, iter(partial(file.read, CHUNK_BYTES), b""))


@lru_cache(maxsize=1)
def _read(stdin: TextIO | None) -> Path:
    stream: BinaryIO | None = getattr(stdin, "buffer", None)
    if stdin is None or stream is None or stdin.isatty():
        got = "a terminal" if stream is not None else "none"
        raise TextError(f"-: expected a text on standard input, got {got}; {_EXAMPLE}")
    folder = cache_dir() / STDIN_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.txt"):
            if time.time() - old.stat().st_mtime > UNUSED_S:
                old.unlink(missing_ok=True)
        piped = folder / f"{uuid4().hex}.txt"
        write_atomically(piped, iter(partial(stream.read, CHUNK_BYTES), b""))
        with piped.open("rb") as file:  # name the text by its hash: equal texts share a file
            text = folder / f"{hashlib.file_digest(file, 'sha256').hexdigest()}.txt"
        piped.replace(text)
    except OSError as error:
        raise TextError(
            f"-: cannot keep standard input in {folder} ({error.strerror}); set XDG_CACHE_HOME to "
            f"a writable folder with free space"
        ) from None
    if not text.stat().st_size:
        text.unlink()
        raise TextError(f"-: expected a text on standard input, got nothing; {_EXAMPLE}")
    return text
