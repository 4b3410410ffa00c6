"""The built-in texts: two come with Python, and tinyshakespeare is downloaded."""

import hashlib
import importlib
import logging
import sysconfig
from functools import partial
from itertools import starmap
from pathlib import Path

from gpt.errors import TextError
from gpt.files import write_atomically
from gpt.reading.decoding import utf8_chunks
from gpt.reading.entries import file_entry
from gpt.text.cache import cache_dir
from gpt.text.documents import Document, Source

log = logging.getLogger(__name__)


SHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt"
)
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394
NAMED = ("python-docs", "python-source", "tinyshakespeare")  # the built-in texts
DOWNLOAD_TIMEOUT_S = 20  # seconds to wait for a response
EXCLUDED_FOLDERS = {  # not in python-source: installed packages, tests, IDLE, demos, docs
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
        files = {name: locate_shakespeare()}
    return Source(name, lambda: starmap(_document, files.items()), tuple(files.values()))


def _is_included(path: Path) -> bool:
    of_machine = path.name.startswith("_sysconfigdata") or path.parts[0].startswith("config-")
    return not of_machine and EXCLUDED_FOLDERS.isdisjoint(path.parts)


def _document(name: str, path: Path) -> Document:
    return Document(name, lambda: utf8_chunks(file_entry(path).blocks(), name))


def locate_shakespeare() -> Path:
    """Return the path of tinyshakespeare in `data/` or the cache; download it if needed."""
    beside, cached = Path("data/tinyshakespeare.txt"), cache_dir() / "tinyshakespeare.txt"
    expected = f"{SHAKESPEARE_BYTES:,} bytes, SHA-256 {SHAKESPEARE_SHA256}"
    for path in (beside, cached):
        if path.is_file():
            if hashlib.sha256(path.read_bytes()).hexdigest() != SHAKESPEARE_SHA256:
                raise TextError(
                    f"{path}: expected tinyshakespeare ({expected}), got another file; remove it, "
                    f"or give its path as the text"
                )
            return path
    log.info("downloading tinyshakespeare from %s", SHAKESPEARE_URL)
    content = _fetch(f"at {beside} ({expected})")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, [content])
    except OSError as error:
        raise TextError(f"{cached}: cannot keep the download: {error.strerror}") from None
    return cached


def _fetch(place: str) -> bytes:
    """Download tinyshakespeare. If that fails, raise TextError, with advice."""
    import urllib.request  # takes 50 ms; only a download needs it
    from http.client import HTTPException

    try:
        with urllib.request.urlopen(SHAKESPEARE_URL, timeout=DOWNLOAD_TIMEOUT_S) as response:
            content = bytes(response.read(SHAKESPEARE_BYTES + 1))
        digest = hashlib.sha256(content).hexdigest()
        if digest == SHAKESPEARE_SHA256:
            return content
        reason = f"got {len(content):,} bytes with SHA-256 {digest[:8]}..."
    except (OSError, HTTPException) as error:
        reason = str(error)
    raise TextError(
        f"cannot download tinyshakespeare from {SHAKESPEARE_URL}: {reason}; try again, put the "
        f"file {place}, or train on python-docs, which needs no network"
    )
