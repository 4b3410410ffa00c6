"""Where a text comes from: a named source or a UTF-8 file, read in chunks of bounded size."""

import codecs
import importlib
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpt.errors import TextError
from gpt.text.download import TINYSHAKESPEARE, locate

CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Text:
    """A text that can be read more than once; `chunks()` yields it from its beginning."""

    name: str
    chunks: Callable[[], Iterator[str]]


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


def read_file(path: Path) -> Iterator[str]:
    """The characters of a UTF-8 file, in chunks; a byte-order mark at its start is dropped.

    Line ends are kept as they stand. Raises TextError where the bytes are not UTF-8, with
    the offset of the first wrong one.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0  # of the first byte that the decoder has not turned into characters
    try:
        with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
            while raw := file.read(CHUNK_BYTES):
                if offset == 0:
                    offset = len(codecs.BOM_UTF8) if raw.startswith(codecs.BOM_UTF8) else 0
                    raw = raw[offset:]
                pending = len(decoder.getstate()[0])  # of a character cut in two by the last raw
                chunk = decoder.decode(raw)
                offset += pending + len(raw) - len(decoder.getstate()[0])
                yield chunk
            if raw is None:
                raise TextError(f"{path}: expected a file, got a device that waits for more")
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise TextError(
            f"{path}: expected UTF-8 text, got byte 0x{error.object[error.start]:02x} at offset "
            f"{offset + error.start}; {_advice(path, error)}"
        ) from None
    except OSError as error:
        raise TextError(f"{path}: cannot read the text: {error.strerror}") from None


def _open_without_waiting(path: str, flags: int) -> int:
    """For what only looks like a file, as /proc/kmsg does; to a file it makes no difference."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _python_docs() -> Iterator[str]:
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise TextError(
            "python-docs: this Python comes without pydoc_data.topics; name another text"
        ) from None
    yield "\n\n".join(topics[name] for name in sorted(topics))


def _advice(path: Path, error: UnicodeDecodeError) -> str:
    with path.open("rb") as file:
        start = file.read(2)
    convert = f"-t UTF-8 {shlex.quote(str(path))} > utf8.txt"
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return f"it looks like UTF-16: iconv -f UTF-16 {convert}"
    wrong = error.object[error.start : error.start + 2]
    if wrong[:1] == b"\xed" and wrong[1:] >= b"\xa0":
        return (
            f"it looks like CESU-8 (surrogates, as Java and Oracle write them): "
            f"uconv -f CESU-8 {convert}"
        )
    if error.reason == "unexpected end of data":
        return (
            f"the file ends in the middle of a character; fetch it again if it was cut short, or "
            f"if it is Latin-1: iconv -f LATIN1 {convert}"
        )
    return f"it may be Latin-1: iconv -f LATIN1 {convert}"


def _kind(path: Path) -> str:
    return "folder" if path.is_dir() else "pipe or device"
