"""The cache folder: built-in and downloaded texts, encoded texts, and texts from standard input.

Two built-in texts come with Python, one is downloaded. Standard input is read only once.
"""

import atexit
import hashlib
import importlib
import logging
import os
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import starmap
from pathlib import Path
from typing import BinaryIO, TextIO
from uuid import uuid4

import platformdirs

from gpt.config.schema import DataConfig
from gpt.errors import TextError
from gpt.files import write_atomically
from gpt.text.decoding import utf8_chunks
from gpt.text.documents import Document, Source
from gpt.text.reading import CHUNK_BYTES, file_entry

log = logging.getLogger(__name__)

HASHED_BYTES = 2**26  # largest total size of files whose content is hashed to detect changes
STDIN_FOLDER = "stdin"  # name of the folder of texts from standard input, in the cache
UNUSED_S = 86_400  # seconds after which a text from standard input is removed from the cache
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
    """Return the path of the copy of standard input in `folder`, that of a run or sweep.

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
        with piped.open("rb") as file:  # name the file by its hash, so that equal texts share it
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


@dataclass(frozen=True)
class Download:
    """Name, address, size in bytes and SHA-256 of a file to download."""

    name: str
    url: str
    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.size:,} bytes, SHA-256 {self.sha256}"


TINYSHAKESPEARE = Download(
    name="tinyshakespeare",
    url="https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
    size=1_115_394,
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
NAMED = ("python-docs", "python-source", TINYSHAKESPEARE.name)  # the built-in texts
DOWNLOAD_TIMEOUT_S = 20  # seconds to wait for a response
EXCLUDED_FOLDERS = {  # folders that python-source omits: other projects, tests, python-docs
    *("site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "pydoc_data"),
}


def open_named(name: str) -> Source:
    """Open the built-in text `name`, one of NAMED."""
    if name == "python-docs":
        try:
            module = importlib.import_module("pydoc_data.topics")
        except ImportError:
            raise TextError(
                f"{name}: not in this installation of Python; choose another text"
            ) from None
        topics = sorted(module.topics.items())
        documents = [
            Document(f"{name}!{topic}", partial(iter, [text.encode()])) for topic, text in topics
        ]
        return Source(name, lambda: iter(documents), (Path(str(module.__file__)),))
    if name == "python-source":
        root = Path(sysconfig.get_path("stdlib"))
        paths = sorted(path.relative_to(root) for path in root.rglob("*.py"))
        files = {f"{name}!{path.as_posix()}": root / path for path in paths if _is_included(path)}
        if not files:
            raise TextError(f"{name}: not in this installation of Python; choose another text")
    else:
        files = {name: locate(TINYSHAKESPEARE)}
    return Source(name, lambda: starmap(_document, files.items()), tuple(files.values()))


def _is_included(path: Path) -> bool:
    of_machine = path.name.startswith("_sysconfigdata") or path.parts[0].startswith("config-")
    return not of_machine and EXCLUDED_FOLDERS.isdisjoint(path.parts)


def _document(name: str, path: Path) -> Document:
    return Document(name, lambda: utf8_chunks(file_entry(path).blocks(), name))


def locate(download: Download) -> Path:
    """Return the path of a file in `data/` or the cache; download it to the cache if needed."""
    beside = Path("data") / f"{download.name}.txt"
    cached = cache_dir() / f"{download.name}.txt"
    for path in (beside, cached):
        if path.is_file():
            if hashlib.sha256(path.read_bytes()).hexdigest() != download.sha256:
                raise TextError(
                    f"{path}: expected {download.name} ({download}), got another file; remove it, "
                    f"or give its path as the text"
                )
            return path
    log.info("downloading %s from %s", download.name, download.url)
    content = _fetch(download, beside)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, [content])
    except OSError as error:
        raise TextError(f"{cached}: cannot keep the download: {error.strerror}") from None
    return cached


def _fetch(download: Download, beside: Path) -> bytes:
    import urllib.request  # every command that looks for runs imports this module
    from http.client import HTTPException

    try:
        with urllib.request.urlopen(download.url, timeout=DOWNLOAD_TIMEOUT_S) as response:
            content = bytes(response.read(download.size + 1))
        digest = hashlib.sha256(content).hexdigest()
        if digest == download.sha256:
            return content
        reason = f"got {len(content):,} bytes with SHA-256 {digest[:8]}..."
    except (OSError, HTTPException) as error:
        reason = str(error)
    raise TextError(
        f"cannot download {download.name} from {download.url}: {reason}; try again, put the file "
        f"at {beside} ({download}), or train on python-docs, which needs no network"
    )
