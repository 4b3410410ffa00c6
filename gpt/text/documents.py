"""The parts of a text: documents, each read in chunks of UTF-8 bytes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpt.errors import listed

MAX_LISTED_NAMES = 3  # number of file or record names in a notice


@dataclass(frozen=True)
class Document:
    """A file, a member of an archive or a record.

    Attributes:
        name: its name in messages.
        chunks: reads it from its beginning as strict UTF-8, in chunks of whole characters and of
            bounded size, without a byte-order mark. Call it before asking for the next document.
        raw: the chunks are any bytes, to be learnt unchanged.
    """

    name: str
    chunks: Callable[[], Iterator[bytes]]
    raw: bool = False


@dataclass(frozen=True)
class Skipped:
    """A file, a member of an archive or a record that is not read, and why."""

    name: str
    reason: str


class Notices:
    """Notices about how files are read, one line for all files with the same notice."""

    def __init__(self) -> None:
        self._counts = dict[str, dict[str, int]]()  # by text and file name

    def add(self, name: str, text: str, count: int = 1) -> None:
        """Add a notice about the file `name`, in which `{count}` stands for the sum of counts."""
        if count:
            self._counts.setdefault(text, {})[name] = count

    def lines(self) -> list[str]:
        """Return the notices, each after the names of its files."""
        return [
            f"{listed([*counts], MAX_LISTED_NAMES)}: "
            + text.replace("{count}", f"{sum(counts.values()):,}")
            for text, counts in self._counts.items()
        ]


def describe_skipped(skipped: Iterable[Skipped]) -> str:
    """Return `; skipped 5 binary (a.png, b.png, c.png and 2 more), 1 empty (d.txt)`."""
    by_reason = dict[str, list[str]]()
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each.name)
    groups = (
        f"{len(names):,} {reason} ({listed(names, MAX_LISTED_NAMES)})"
        for reason, names in by_reason.items()
    )
    return f"; skipped {', '.join(groups)}" if by_reason else ""


def joined_name(names: Sequence[str]) -> str:
    """Return the name of several texts together."""
    return listed(names, 1)


@dataclass(frozen=True)
class Source:
    """A text that can be read more than once.

    Attributes:
        name: the name that the user typed.
        parts: yields the documents, and what is skipped, always in the same order.
        files: the files on the disk that are read.
        notices: returns lines to be logged once all documents have been read.
        standard_input: the file that holds what came from standard input, if any did.
    """

    name: str
    parts: Callable[[], Iterator[Document | Skipped]]
    files: tuple[Path, ...] = ()
    notices: Callable[[], Sequence[str]] = tuple
    standard_input: Path | None = None

    def documents(self) -> Iterator[Document]:
        """Yield the documents from the first on."""
        return (part for part in self.parts() if isinstance(part, Document))

    @cached_property
    def skipped(self) -> tuple[Skipped, ...]:
        """Everything that is not read. Reads archives and tables to find it."""
        return tuple(part for part in self.parts() if isinstance(part, Skipped))
