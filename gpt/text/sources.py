"""Where a text comes from: a named source or a UTF-8 file, read in pieces of bounded size."""

import codecs
import hashlib
import importlib
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from gpt.errors import TextError
from gpt.files import write_atomically

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Text:
    """A text that can be read more than once; `chunks()` yields it from its beginning."""

    name: str
    chunks: Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Download:
    """A file at a pinned address, known by its size in bytes and its SHA-256."""

    name: str
    url: str
    size: int
    sha256: str


TINYSHAKESPEARE = Download(
    name="tinyshakespeare",
    url="https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
    size=1_115_394,
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)


def open_text(source: str) -> Text:
    """The text called `python-docs` or `tinyshakespeare`, or the UTF-8 file at that path.

    Raises:
        TextError: there is no such text; `Text.chunks()` raises it for what cannot be read.
    """
    if source == "python-docs":
        return Text(source, _python_docs)
    if source == TINYSHAKESPEARE.name:
        path = locate(TINYSHAKESPEARE)
        return Text(source, lambda: read_file(path))
    path = Path(source)
    if not path.exists():
        raise TextError(
            f"{source}: no such text; expected python-docs, tinyshakespeare, or the path of a file"
        )
    if not path.is_file():
        raise TextError(f"{source}: expected a text file, got a {_kind(path)}")
    return Text(source, lambda: read_file(path))


def cache_dir() -> Path:
    """Where downloads and encoded texts are kept: `$XDG_CACHE_HOME/gpt` or `~/.cache/gpt`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gpt"


def read_file(path: Path) -> Iterator[str]:
    """The characters of a UTF-8 file, in pieces; a byte-order mark at its start is dropped.

    Line ends are kept as they stand. Raises TextError where the bytes are not UTF-8, with
    the offset of the first wrong one.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0  # of the first byte that the decoder has not turned into characters
    try:
        with path.open("rb") as file:
            while piece := file.read(CHUNK_BYTES):
                if offset == 0:
                    offset = len(codecs.BOM_UTF8) if piece.startswith(codecs.BOM_UTF8) else 0
                    piece = piece[offset:]
                pending = len(decoder.getstate()[0])  # of a character cut in two by the last piece
                chunk = decoder.decode(piece)
                offset += pending + len(piece) - len(decoder.getstate()[0])
                yield chunk
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise TextError(
            f"{path}: expected UTF-8 text, got byte 0x{error.object[error.start]:02x} at offset "
            f"{offset + error.start}{_other_encoding(path)}"
        ) from None
    except OSError as error:
        raise TextError(f"{path}: cannot read the text: {error.strerror}") from None


def locate(download: Download, *, retries: int = 3, timeout_s: float = 20) -> Path:
    """The file under `data/`, else in the cache, else downloaded into the cache.

    Raises:
        TextError: the file is not the pinned one, or it cannot be downloaded.
    """
    beside = Path("data") / f"{download.name}.txt"
    cached = cache_dir() / f"{download.name}.txt"
    for path in (beside, cached):
        if path.is_file():
            if _sha256(path.read_bytes()) != download.sha256:
                raise TextError(
                    f"{path}: this is not {download.name} (expected {_pinned(download)}); "
                    f"remove it, or train on it by its path"
                )
            return path
    log.info("downloading %s from %s", download.name, download.url)
    content = _fetch(download, beside, retries, timeout_s)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, [content])
    except OSError as error:
        raise TextError(f"{cached}: cannot keep the download: {error.strerror}") from None
    return cached


def _fetch(download: Download, beside: Path, retries: int, timeout_s: float) -> bytes:
    reason = ""
    for attempt in range(retries):
        if attempt:
            time.sleep(2 ** (attempt - 1))
        try:
            with urllib.request.urlopen(download.url, timeout=timeout_s) as response:
                content = bytes(response.read(download.size + 1))
        except (OSError, HTTPException) as error:
            reason = str(error)
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                break  # asking again will not help
            continue
        if len(content) < download.size:
            reason = f"the connection ended after {len(content):,} bytes"
            continue
        if _sha256(content) == download.sha256:
            return content
        reason = f"what came is another file, with SHA-256 {_sha256(content)[:8]}..."
        break
    raise TextError(
        f"cannot download {download.name} from {download.url}: {reason}; put the file at {beside} "
        f"({_pinned(download)}), or train on python-docs, which needs no network"
    )


def _python_docs() -> Iterator[str]:
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise TextError(
            "python-docs: this Python comes without pydoc_data.topics; name another text"
        ) from None
    yield "\n\n".join(topics[name] for name in sorted(topics))


def _other_encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(2)
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return f"; it looks like UTF-16: iconv -f UTF-16 -t UTF-8 {path} > utf8.txt"
    return "; convert it first, e.g. iconv -f LATIN1 -t UTF-8"


def _kind(path: Path) -> str:
    return "folder" if path.is_dir() else "pipe or device"


def _pinned(download: Download) -> str:
    return f"{download.size:,} bytes, SHA-256 {download.sha256}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
