"""A text as a sequence of documents, each read in chunks of UTF-8."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt.errors import listed

MAX_LISTED_NAMES = 3  # largest number of file names in a notice


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
class Skipped:
    """Name of a file that is not read, and the reason."""

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
        """Return a line for each notice, as in `a.txt, b.txt: read as UTF-16`."""
        return [
            f"{listed([*counts], MAX_LISTED_NAMES)}: "
            + text.replace("{count}", f"{sum(counts.values()):,}")
            for text, counts in self._counts.items()
        ]


def describe_skipped(skipped: Iterable[Skipped]) -> str:
    """List the skipped files, as in `; skipped 2 binary (a.png, b.png), 1 empty (c.txt)`."""
    by_reason = dict[str, list[str]]()
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each.name)
    groups = (
        f"{len(names):,} {reason} ({listed(names, MAX_LISTED_NAMES)})"
        for reason, names in by_reason.items()
    )
    return f"; skipped {', '.join(groups)}" if by_reason else ""


@dataclass(frozen=True)
class Source:
    """A text that can be read more than once."""

    name: str  # name of the text as the user typed it
    documents: Callable[[], Iterator[Document]]  # always yields them in the same order
    files: tuple[Path, ...] = ()  # files on disk that contain the text
    notices: Callable[[], Sequence[str]] = tuple  # returns lines to log after the text was read
    standard_input: Path | None = None  # file with the text from standard input, if it is used
