"""What a text is made of: documents, each read in chunks of UTF-8 bytes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpt.errors import listed


@dataclass(frozen=True)
class Document:
    """A file, a member of an archive or a record, by the name that messages give it.

    `chunks()` yields it from its beginning as strict UTF-8, in chunks of whole characters and of
    bounded size, without a byte-order mark; line ends are kept as they stand. It is read before
    the next document is asked for. `raw`: the chunks are any bytes, and no rule changes them.
    """

    name: str
    chunks: Callable[[], Iterator[bytes]]
    raw: bool = False


@dataclass(frozen=True)
class Skipped:
    """Something that was found and not read, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Notice:
    """A file that is read in a way that the user did not ask for."""

    name: str
    text: str


def joined_name(names: Sequence[str]) -> str:
    """What several texts together are called."""
    return listed(names, 1)


@dataclass(frozen=True)
class Source:
    """A text that can be read more than once; `documents()` yields it from its beginning.

    The documents come in the same order each time. `name` is what the user typed; `files` are
    those that are read from the disk. `find_skipped` looks through archives for `skipped`.
    `notices` returns what is to be reported once all documents have been read. `standard_input` is
    the file among `files` that holds what came from standard input, if there is one.
    """

    name: str
    documents: Callable[[], Iterator[Document]]
    files: tuple[Path, ...] = ()
    find_skipped: Callable[[], tuple[Skipped, ...]] = tuple
    notices: Callable[[], tuple[str, ...]] = tuple
    standard_input: Path | None = None

    @cached_property
    def skipped(self) -> tuple[Skipped, ...]:
        """What was found and is not read; of a compressed .tar it takes as long as reading it."""
        return self.find_skipped()
