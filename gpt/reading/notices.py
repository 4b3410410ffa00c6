"""Messages about the files of a text: which files were skipped, and how others were read."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpt.errors import listed

MAX_LISTED_NAMES = 3  # largest number of file names in a notice


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
