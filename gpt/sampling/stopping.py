"""Stop strings: a sample ends before the first one, and no part of it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Chunk:
    """Characters of one of the samples, and the log-probability of each."""

    sample: int
    text: str
    log_probabilities: list[float]
    ended: bool = False  # with the sample's last chunk
    stop: str | None = None  # the stop string that ended it; None: it ended at its length


@dataclass
class StopBuffer:
    """Holds back the end of a sample while it may be the beginning of a stop string.

    `length`: the number of characters at which the sample ends; None: only a stop string ends it.
    """

    sample: int
    stops: Sequence[str] = ()
    length: int | None = None
    generated: int = 0
    text: str = ""
    log_probabilities: list[float] = field(default_factory=list)

    def push(self, character: str, log_probability: float) -> Chunk | None:
        """Add the next character. The characters that can be shown now, if there are any."""
        self.generated += 1
        self.text += character
        self.log_probabilities.append(log_probability)
        stop = max((s for s in self.stops if self.text.endswith(s)), key=len, default=None)
        if stop is not None:
            return self.release(len(self.text) - len(stop), ended=True, stop=stop)
        if self.generated == self.length:
            return self.release(len(self.text), ended=True)
        n = len(self.text) - held_back(self.text, self.stops)
        return self.release(n) if n else None

    def release(self, n: int, *, ended: bool = False, stop: str | None = None) -> Chunk:
        """The first n characters held back."""
        chunk = Chunk(self.sample, self.text[:n], self.log_probabilities[:n], ended, stop)
        self.text, self.log_probabilities = self.text[n:], self.log_probabilities[n:]
        return chunk


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the text's end may be the beginning of a stop string."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    return next(
        n
        for n in range(min(longest, len(text)), -1, -1)
        if n == 0 or any(stop.startswith(text[-n:]) for stop in stops)
    )
