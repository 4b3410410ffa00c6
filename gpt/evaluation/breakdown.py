"""Break the loss of a text down by a property of its characters, such as their script."""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpt.evaluation.scored_text import Scores
from gpt.text.vocabulary import REPLACEMENT, Ids, Vocabulary, code_points

MARGIN = 3  # ids read before and after the scored ones, to see all bytes of a character
OTHER_KINDS = {"N": "digit", "P": "punctuation", "S": "symbol", "Z": "space", "C": "control"}

Values = NDArray[np.int64]
Sums = NDArray[np.float64]  # (4,): sums of characters, ids, nats and hits
NOTHING: Sums = np.zeros(4)


@dataclass(frozen=True)
class Group:
    """Characters with one value of a property, such as the script `Latin`, and their mean loss."""

    value: str
    characters: int
    loss: float  # nats per character
    accuracy: float  # fraction of ids to which the model gave the highest probability


class Breakdown:
    """Sums of the losses on a text for each value of `property_`, a key of LABELS."""

    def __init__(self, property_: str, ids: Ids, vocabulary: Vocabulary) -> None:
        self.property_, self.ids, self.vocabulary = property_, ids, vocabulary
        self._sums: dict[int, Sums] = {}

    def add(self, scores: Scores) -> None:
        """Add the losses of the ids in `scores` to the sums."""
        start, n = scores.start, len(scores.losses)
        before = min(start, MARGIN)
        points, begins = characters_of(
            self.ids[start - before : start + n + MARGIN], self.vocabulary
        )
        scored = slice(before, before + n)
        values = points[scored]
        if self.property_ == "position":
            values = np.ceil(np.log2(scores.contexts)).astype(np.int64)
        found, places = np.unique(values, return_inverse=True)
        columns = (begins[scored], np.ones(n), scores.losses, scores.hits)
        sums = [np.bincount(places, column) for column in columns]
        for value, row in zip(found.tolist(), np.stack(sums, 1), strict=True):
            self._sums[value] = self._sums.get(value, NOTHING) + row

    def groups(self) -> list[Group]:
        """Return a group for each label, sorted by the smallest value of each group.

        Several values can have one label: all code points of Latin letters have `Latin`.
        """
        merged: dict[str, Sums] = {}
        for value in sorted(self._sums):
            label = LABELS[self.property_](value)
            merged[label] = merged.get(label, NOTHING) + self._sums[value]
        return [
            Group(label, int(characters), nats / max(characters, 1), hits / ids)
            for label, (characters, ids, nats, hits) in merged.items()
        ]


def characters_of(ids: Ids, vocabulary: Vocabulary) -> tuple[Values, NDArray[np.bool_]]:
    """Return the code point of each id's character, and whether the id begins the character.

    If ids are bytes, each byte of a character has the code point of that character. Bytes that are
    not UTF-8 have the code point U+FFFD.
    """
    begins = vocabulary.begins(ids)
    if not vocabulary.is_bytes:
        return code_points(vocabulary.decode(ids)).astype(np.int64), begins
    begins[:1] = True  # the first id may lie within a character
    content, ends = ids.tobytes(), [*np.flatnonzero(begins).tolist(), len(ids)]
    points = [ord(content[a:b].decode(errors="replace")[0]) for a, b in pairwise(ends)]
    return np.array(points)[np.cumsum(begins) - 1], begins


@cache
def script_of(point: int) -> str:
    """Return a letter's script, such as `Latin`, or another character's kind, such as `digit`.

    The script is the first word of the letter's Unicode name.
    """
    character = chr(point)
    kind = unicodedata.category(character)[0]
    if character == REPLACEMENT:
        return "unknown"
    if kind in OTHER_KINDS:
        return "space" if character.isspace() else OTHER_KINDS[kind]
    return unicodedata.name(character, "unnamed").split()[0].capitalize()


def _position_label(exponent: int) -> str:
    low, high = 2**exponent // 2 + 1, 2**exponent
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


LABELS: dict[str, Callable[[int], str]] = {
    "position": _position_label,
    "script": script_of,
    "character": chr,
}
"""Properties by which a loss can be broken down, and for each a function that names a value."""
