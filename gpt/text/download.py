"""Files at pinned addresses, downloaded once and kept in the cache."""

import hashlib
import logging
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from gpt.errors import TextError
from gpt.files import write_atomically
from gpt.text.cache import cache_dir

log = logging.getLogger(__name__)


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


def _pinned(download: Download) -> str:
    return f"{download.size:,} bytes, SHA-256 {download.sha256}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
