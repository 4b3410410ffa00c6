"""Where a text comes from: a named source or a UTF-8 file, read in chunks of bounded size."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

from gpt.config.schema import DataConfig
from gpt.errors import TextError
from gpt.text.decoding import utf8_chunks
from gpt.text.documents import Document, Source
from gpt.text.download import TINYSHAKESPEARE, locate

CHUNK_BYTES = 1 << 22


def open_source(source: str, data: DataConfig | None = None) -> Source:
    """The text called `python-docs` or `tinyshakespeare`, or the UTF-8 file at that path.

    Raises:
        TextError: there is no such text; reading its documents raises it for what is not text.
    """
    if source == "python-docs":
        return Source(source, _python_docs)
    if source == TINYSHAKESPEARE.name:
        return _of_file(source, locate(TINYSHAKESPEARE))
    path = Path(source)
    if not path.exists():
        raise TextError(
            f"{source}: no such text; expected python-docs, tinyshakespeare, or the path of a file"
        )
    if not path.is_file():
        raise TextError(f"{source}: expected a text file, got a {_kind(path)}")
    return _of_file(source, path)


def _of_file(name: str, path: Path) -> Source:
    document = Document(name, lambda: utf8_chunks(read_blocks(path), str(path)))
    return Source(name, lambda: iter([document]), (path,))


def read_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file. Raises TextError if they cannot be read."""
    try:
        with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
            while block := file.read(CHUNK_BYTES):
                yield block
        if block is None:
            raise TextError(f"{path}: expected a file, got a device that waits for more")
    except OSError as error:
        raise TextError(f"{path}: cannot read the text: {error.strerror}") from None


def _open_without_waiting(path: str, flags: int) -> int:
    """For what only looks like a file, as /proc/kmsg does; to a file it makes no difference."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _python_docs() -> Iterator[Document]:
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise TextError(
            "python-docs: this Python comes without pydoc_data.topics; name another text"
        ) from None
    text = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    yield Document("python-docs", lambda: iter([text]))


def _kind(path: Path) -> str:
    return "folder" if path.is_dir() else "pipe or device"
