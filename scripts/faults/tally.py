"""What is counted: how often it was tried, and all that should not have happened."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Tally:
    """One kind of fault. The lists name what happened, and are empty if all is well."""

    kind: str
    tries: int = 0
    lost: list[str] = field(default_factory=list)  # runs that cannot be resumed
    changed: list[str] = field(default_factory=list)  # runs that end with other bits
    false_alarms: list[str] = field(default_factory=list)  # what is intact is called damaged
    crashes: list[str] = field(default_factory=list)  # anything but a result or one message
    outcomes: Counter[str] = field(default_factory=Counter)  # how the tries ended
    seconds: float = 0.0
    skipped: str = ""  # why it cannot be tried here

    @property
    def failures(self) -> list[str]:
        """All that should not have happened."""
        return [*self.lost, *self.changed, *self.false_alarms, *self.crashes]

    @contextmanager
    def timed(self) -> Iterator["Tally"]:
        """Add the seconds that the context takes."""
        began = time.perf_counter()
        try:
            yield self
        finally:
            self.seconds += time.perf_counter() - began


def table(tallies: list[Tally]) -> str:
    """At most 80 columns: a row for each kind, then what should not have happened."""
    rows = [["kind", "tries", "lost", "changed bits", "false alarms", "crashes", "seconds"]]
    for tally in tallies:
        lists = (tally.lost, tally.changed, tally.false_alarms, tally.crashes)
        counts = (tally.tries, *map(len, lists), round(tally.seconds))
        rows.append([tally.kind, *(f"{count:,}" for count in counts)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    for tally in tallies:
        lines += [f"{tally.kind}: not tried, {tally.skipped}"] if tally.skipped else []
        lines += [f"{tally.kind}: {failure:.1000}" for failure in tally.failures[:20]]
    return "\n".join(lines)
