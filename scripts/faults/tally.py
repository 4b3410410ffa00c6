"""Counts of tries and failures."""

from collections import Counter
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
    skipped: str = ""  # why it was not tried

    @property
    def failures(self) -> list[str]:
        """All failures."""
        return [*self.lost, *self.changed, *self.false_alarms, *self.crashes]
