"""The parts of a text: documents, each read in chunks of UTF-8 bytes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpt.errors import listed

MAX_LISTED_NAMES = 3  # largest number of file or record names in a notice


@dataclass(frozen=True)
class Document:
    """A unit of a text: a file, a file in an archive, or a record of a table.

    Attributes:
        name: the name of the document in messages.
        chunks: returns an iterator over the content, in chunks of bounded size. Each chunk is whole
            characters in UTF-8, without a byte-order mark. Read the chunks before requesting the
            next document, because archives are read in one pass.
        raw: whether the document is binary. If so, its chunks are any bytes, and must not be
            normalised.
    """

    name: str
    chunks: Callable[[], Iterator[bytes]]
    raw: bool = False


@dataclass(frozen=True)
class Skipped:
    """A file, a file in an archive, or a record that is not read, and the reason."""

    name: str
    reason: str


class Notices:
    """Collects notices about how files were read, and merges equal notices into one line."""

    def __init__(self) -> None:
        self._counts = dict[str, dict[str, int]]()  # notice -> file name -> count

    def add(self, name: str, text: str, count: int = 1) -> None:
        """Add the notice `text` about the file `name`, unless `count` is 0.

        `{count}` in `text` is replaced by the sum of `count` over all files with this notice.
        """
        if count:
            self._counts.setdefault(text, {})[name] = count

    def lines(self) -> list[str]:
        """Return one line for each notice: the names of its files, a colon, and the notice."""
        return [
            f"{listed([*counts], MAX_LISTED_NAMES)}: "
            + text.replace("{count}", f"{sum(counts.values()):,}")
            for text, counts in self._counts.items()
        ]


def describe_skipped(skipped: Iterable[Skipped]) -> str:
    """Describe skipped files by reason, as in `; skipped 2 binary (a.png, b.png), 1 empty (c.txt)`.

    If nothing was skipped, return an empty string.
    """
    by_reason = dict[str, list[str]]()
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each.name)
    groups = (
        f"{len(names):,} {reason} ({listed(names, MAX_LISTED_NAMES)})"
        for reason, names in by_reason.items()
    )
    return f"; skipped {', '.join(groups)}" if by_reason else ""


def joined_name(names: Sequence[str]) -> str:
    """Return one name for several texts, such as `a.txt and 2 more`."""
    return listed(names, 1)


@dataclass(frozen=True)
class Source:
    """A text that can be read more than once.

    Attributes:
        name: the name that the user typed.
        parts: returns an iterator over the documents and skipped files, always in the same order.
        files: the files on disk that contain the text.
        notices: returns the lines to log after all documents have been read.
        standard_input: the file with the text from standard input; None if there is no such text.
    """

    name: str
    parts: Callable[[], Iterator[Document | Skipped]]
    files: tuple[Path, ...] = ()
    notices: Callable[[], Sequence[str]] = tuple
    standard_input: Path | None = None

    def documents(self) -> Iterator[Document]:
        """Yield the documents in order, without the skipped files."""
        return (part for part in self.parts() if isinstance(part, Document))

    @cached_property
    def skipped(self) -> tuple[Skipped, ...]:
        """The files and records that are skipped, found by reading all archives and tables once."""
        return tuple(part for part in self.parts() if isinstance(part, Skipped))
