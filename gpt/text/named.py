"""Texts that are known by a name: two come with Python, one is downloaded."""

import importlib
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from gpt.errors import TextError
from gpt.text.decoding import utf8_chunks
from gpt.text.documents import Document, Source
from gpt.text.download import TINYSHAKESPEARE, locate
from gpt.text.reading import file_entry

NAMED = ("python-docs", "python-source", TINYSHAKESPEARE.name)
NO_SOURCE = {  # of the standard library: other projects, tests, tables of one machine, python-docs
    *("site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "pydoc_data"),
}


def open_named(name: str) -> Source:
    """The text of that name, one of NAMED.

    Raises:
        TextError: it cannot be downloaded, or this Python came without it.
    """
    if name == "python-docs":
        return _python_docs()
    if name == "python-source":
        return _python_source()
    path = locate(TINYSHAKESPEARE)
    return Source(name, lambda: iter([_document(name, path)]), (path,))


def _python_docs() -> Source:
    try:
        module = importlib.import_module("pydoc_data.topics")
    except ImportError:
        raise TextError(
            "python-docs: this Python comes without pydoc_data.topics; name another text"
        ) from None

    def documents() -> Iterator[Document]:
        for topic in sorted(module.topics):
            text: bytes = module.topics[topic].encode()
            yield Document(f"python-docs!{topic}", partial(iter, [text]))

    return Source("python-docs", documents, (Path(str(module.__file__)),))


def _python_source() -> Source:
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path.relative_to(root) for path in root.rglob("*.py")]
    paths = sorted(path for path in paths if not _is_left_out(path))
    if not paths:
        raise TextError(
            f"python-source: this Python's library in {root} comes without its source; name "
            f"another text"
        )

    def documents() -> Iterator[Document]:
        return (_document(f"python-source!{path.as_posix()}", root / path) for path in paths)

    return Source("python-source", documents, tuple(root / path for path in paths))


def _is_left_out(path: Path) -> bool:
    """Whether a file of the standard library is no source of it, or of this machine alone."""
    of_machine = path.name.startswith("_sysconfigdata") or path.parts[0].startswith("config-")
    return of_machine or not NO_SOURCE.isdisjoint(path.parts)


def _document(name: str, path: Path) -> Document:
    return Document(name, lambda: utf8_chunks(file_entry(path).blocks(), name))
