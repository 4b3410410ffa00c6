"""Find lines of the val split that also occur in the train split, where a model can memorise."""

from collections import Counter
from dataclasses import dataclass

from gpt.text.corpus import Corpus

MIN_LINE_CHARACTERS = 60  # characters of a line; shorter ones may occur twice by chance
MAX_SCANNED_IDS = 2**22  # first ids of val whose lines are looked for
TRAIN_PART_IDS = 2**20  # ids of train that are decoded at once


@dataclass(frozen=True)
class Duplicates:
    """Fraction of the `scanned` characters of val that are in lines of train; the longest one."""

    share: float
    scanned: int
    longest: str


def find_duplicates(text: Corpus) -> Duplicates:
    """Look for the lines of val of at least MIN_LINE_CHARACTERS in all of train."""
    decode, train, val = text.vocabulary.decode, text.train, text.val[:MAX_SCANNED_IDS]
    lines = Counter(line for line in decode(val).split("\n") if len(line) >= MIN_LINE_CHARACTERS)
    longest, last, found = max(map(len, lines), default=0), "", set[str]()
    for start in range(0, len(train) if lines else 0, TRAIN_PART_IDS):
        *whole, last = (last + decode(train[start : start + TRAIN_PART_IDS])).split("\n")
        found |= lines.keys() & {*whole}
        last = last[: longest + 1]  # a longer line is not in val, however it goes on
    found |= lines.keys() & {last}
    share = sum(len(line) * lines[line] for line in found) / max(len(val), 1)
    return Duplicates(share, len(val), max(sorted(found), key=len, default=""))
