"""What a text is made of: documents, each read in chunks of UTF-8 bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Document:
    """A file, a member of an archive or a record, by the name that messages give it.

    `chunks()` yields it from its beginning as strict UTF-8, in chunks of whole characters and of
    bounded size, without a byte-order mark; line ends are kept as they stand. It is read before
    the next document is asked for.
    """

    name: str
    chunks: Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class Skipped:
    """Something that was found and not read, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Source:
    """A text that can be read more than once; `documents()` yields it from its beginning.

    The documents come in the same order each time. `name` is what the user typed; `files` are
    those that are read from the disk.
    """

    name: str
    documents: Callable[[], Iterator[Document]]
    files: tuple[Path, ...] = ()
    skipped: tuple[Skipped, ...] = ()
