"""A text as a sequence of documents, and its division into train and val.

Each document is read in chunks of UTF-8, in which line ends are changed to LF.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpt.config.schema import DataConfig
from gpt.seeds import random_stream

MAX_VAL_RATIO = 1.5  # largest ratio of val's size to the wanted size, if val is whole documents


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


def train_characters(characters: int, val_fraction: float) -> int:
    """Return how many of the `characters` of a text are in the train split."""
    return int((1 - val_fraction) * characters)


def least_characters(T: int, val_fraction: float) -> int:
    """Return how many characters a text needs so that train and val each have more than `T`."""
    least = max(T / val_fraction, (T + 1) / (1 - val_fraction))  # the result, except for rounding
    lengths = ((n, train_characters(n, val_fraction)) for n in count(int(least)))
    return next(n for n, train in lengths if min(train, n - train) > T)


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


def held_out(lengths: list[int], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Choose random documents for val, at least one; return a bool for each document.

    `lengths` are in characters. The chosen documents have about `fraction` of all characters. If
    two documents or more have text, train keeps at least one with text.
    """
    total, held = sum(lengths), 0
    wanted = fraction * total
    chosen = np.zeros(len(lengths), bool)
    for index in random_stream(seed, "held-out documents", 0).permutation(len(lengths)):
        if held >= wanted:
            break
        with_this = held + lengths[index]
        if held < with_this < total and with_this <= MAX_VAL_RATIO * wanted:
            chosen[index] = True
            held = with_this
    if not held:  # each document is too long or empty: choose the shortest one that is not empty
        chosen[int(np.argmin([length or np.inf for length in lengths]))] = True
    return chosen
