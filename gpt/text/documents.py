"""A text as a sequence of documents, which are read in chunks of UTF-8."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt.config.data_config import DataConfig


@dataclass(frozen=True)
class Document:
    """A file, a file in an archive, or a record of a table.

    `chunks` returns the content in chunks of whole characters in UTF-8, without a byte-order mark.
    Read the chunks before requesting the next document, because archives are read in one pass.
    """

    name: str  # name of the document in messages
    chunks: Callable[[], Iterator[bytes]]
    raw: bool = False  # whether the chunks are arbitrary bytes, which are not normalised


@dataclass(frozen=True)
class Source:
    """A text that can be read more than once."""

    name: str  # name of the text as the user typed it
    documents: Callable[[], Iterator[Document]]  # yields all documents, always in the same order
    files: tuple[Path, ...] = ()  # files on disk that contain the text
    notices: Callable[[], Sequence[str]] = tuple  # called after reading; returns lines to log
    standard_input: Path | None = None  # file with the text from standard input, if it is used


class Normalizer:
    """Changes the line ends CRLF and CR to LF in texts of any size, passed in chunks of UTF-8."""

    def __init__(self) -> None:
        self.line_ends = 0  # number of CRLF and CR line ends that were changed to LF

    def __call__(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Normalise the chunks of one text; yield non-empty chunks of whole characters."""
        pending = b""  # a CR held back at the end of a chunk: the next chunk may begin with LF
        for chunk in chunks:
            chunk, pending = pending + chunk, b""
            if b"\r" in chunk:
                if chunk.endswith(b"\r"):
                    chunk, pending = chunk[:-1], b"\r"
                unified = chunk.replace(b"\r\n", b"\n")
                self.line_ends += len(chunk) - len(unified) + unified.count(b"\r")
                chunk = unified.replace(b"\r", b"\n")
            if chunk:
                yield chunk
        if pending:
            self.line_ends += 1
            yield b"\n"


def divided(file: Document, normalizer: Normalizer, documents: str) -> Iterator[tuple[bytes, bool]]:
    """Normalise a file or record; divide it into lines, unless `documents` is "files".

    Yields:
        A fragment of a document, and whether it is the last fragment of that document.
    """
    is_open = documents == "files"  # whether more fragments of the current document may follow
    for chunk in file.chunks() if file.raw else normalizer(file.chunks()):
        if documents == "files":
            yield chunk, False
        else:
            for line in chunk.splitlines(keepends=True):
                is_open = not line.endswith(b"\n")
                yield line, not is_open
    if is_open:
        yield b"", True


def document_lengths(source: Source, data: DataConfig) -> list[int]:
    """Return the number of characters of each document, as `data.documents` defines them."""
    lengths, length, normalizer = [], 0, Normalizer()
    for file in source.documents():
        for fragment, ends in divided(file, normalizer, data.documents):
            length += len(fragment.decode(errors="replace"))  # the text may be binary
            if ends:
                lengths.append(length)
                length = 0
    return lengths
