"""Counts of tries and failures, and the table that shows them."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts for one kind of fault. The lists of failures are empty if all is well."""

    kind: str
    tries: int = 0
    lost: list[str] = field(default_factory=list)  # runs that cannot be resumed
    changed: list[str] = field(default_factory=list)  # runs that end with other bits
    false_alarms: list[str] = field(default_factory=list)  # an intact run is called damaged
    crashes: list[str] = field(default_factory=list)  # a traceback, or no message
    outcomes: Counter[str] = field(default_factory=Counter)  # how the tries ended
    seconds: float = 0.0
    skipped: str = ""  # why it was not tried

    @property
    def failures(self) -> list[str]:
        """All failures."""
        return [*self.lost, *self.changed, *self.false_alarms, *self.crashes]

    @contextmanager
    def timed(self) -> Iterator["Tally"]:
        """Add the seconds that the context takes."""
        began = time.perf_counter()
        try:
            yield self
        finally:
            self.seconds += time.perf_counter() - began


COLUMNS = {  # widths, 79 characters in all
    "kind": 22,
    "tries": 8,
    "lost": 6,
    "changed bits": 14,
    "false alarms": 14,
    "crashes": 9,
    "s": 6,
}


def header() -> str:
    """Return the header of the table."""
    return _line([*COLUMNS])


def row(tally: Tally) -> str:
    """Return a row of the table, and a line for each failure."""
    lists = (tally.lost, tally.changed, tally.false_alarms, tally.crashes)
    counts = (tally.tries, *map(len, lists), round(tally.seconds))
    lines = [_line([tally.kind, *(f"{count:,}" for count in counts)])]
    lines += [f"  not tried: {tally.skipped}"] if tally.skipped else []
    return "\n".join([*lines, *(f"  {failure:.2000}" for failure in tally.failures[:20])])


def _line(cells: list[str]) -> str:
    (first, width), *rest = zip(cells, COLUMNS.values(), strict=True)
    return first.ljust(width) + "".join(cell.rjust(width) for cell, width in rest)
