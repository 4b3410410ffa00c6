"""Find lines of val that also occur in train. If a model memorises them, val loss is too low."""

from collections import Counter
from dataclasses import dataclass

from gpt.text.corpus import Corpus

MIN_LINE_CHARACTERS = 60  # length below which a line is ignored, as it may occur twice by chance
MAX_SCANNED_IDS = 2**22  # number of first ids of val whose lines are searched in train
TRAIN_PART_IDS = 2**20  # number of ids of train that are decoded at once


@dataclass(frozen=True)
class Duplicates:
    """Lines that occur in both train and the first characters of val."""

    share: float  # fraction of the scanned characters of val in such lines
    scanned: int  # number of scanned characters
    longest: str  # the longest line


def find_duplicates(text: Corpus) -> Duplicates:
    """Find lines of val that also occur in train and have at least MIN_LINE_CHARACTERS."""
    decode, train, val = text.vocabulary.decode, text.train, text.val[:MAX_SCANNED_IDS]
    lines = Counter(line for line in decode(val).split("\n") if len(line) >= MIN_LINE_CHARACTERS)
    longest, last, found = max(map(len, lines), default=0), "", set[str]()
    for start in range(0, len(train) if lines else 0, TRAIN_PART_IDS):
        *whole, last = (last + decode(train[start : start + TRAIN_PART_IDS])).split("\n")
        found |= lines.keys() & {*whole}
        last = last[: longest + 1]  # no line of val is longer
    found |= lines.keys() & {last}
    share = sum(len(line) * lines[line] for line in found) / max(len(val), 1)
    return Duplicates(share, len(val), max(sorted(found), key=len, default=""))
