"""Break the loss of a text down by a property of its characters.

n: number of consecutive scored ids.
"""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpt.evaluation.scores import Scores
from gpt.text.vocabulary import REPLACEMENT, Ids, Vocabulary, code_points

LONG_WORD = 16  # characters from which words are one group
MARGIN = 4 * LONG_WORD  # ids read before and after the scored ones, to see whole words
OTHER_KINDS = {"N": "digit", "P": "punctuation", "S": "symbol", "Z": "space", "C": "control"}

Values = NDArray[np.int64]
Sums = NDArray[np.float64]  # characters, ids, nats, hits
NOTHING: Sums = np.zeros(4)


@dataclass(frozen=True)
class Group:
    """Characters with the same value of a property, and their mean loss."""

    value: str
    characters: int
    loss: float  # nats per character
    accuracy: float  # fraction of ids with the highest probability


@dataclass(frozen=True)
class Stretch:
    """Part of a text: n ids whose losses are known, and up to MARGIN ids on both sides of them."""

    points: Values  # code point of each id's character
    begins: NDArray[np.bool_]  # whether each id is the first of its character
    scored: slice  # selects the n ids with losses from `points` and `begins`
    contexts: Values  # (n,) number of ids from which each of these n ids was predicted


class Breakdown:
    """Sums of the losses of a text by one of PROPERTIES of its characters, such as their script."""

    def __init__(self, property_: str, ids: Ids, vocabulary: Vocabulary) -> None:
        self.ids, self.vocabulary = ids, vocabulary
        self._values, self._label = PROPERTIES[property_]
        self._sums: dict[int, Sums] = {}

    def add(self, scores: Scores) -> None:
        """Add the losses of the consecutive ids in `scores` to the sums."""
        start, end = scores.start, scores.start + len(scores.losses)
        before = min(start, MARGIN)
        points, begins = characters_of(self.ids[start - before : end + MARGIN], self.vocabulary)
        scored = slice(before, before + end - start)
        values = self._values(Stretch(points, begins, scored, scores.contexts))
        found, places = np.unique(values, return_inverse=True)
        columns = (begins[scored], np.ones(end - start), scores.losses, scores.hits)
        sums = [np.bincount(places, column) for column in columns]
        for value, row in zip(found.tolist(), np.stack(sums, 1), strict=True):
            self._sums[value] = self._sums.get(value, NOTHING) + row

    def groups(self) -> list[Group]:
        """Return a group for each label, in the order of the property's values.

        A label can stand for several values: `Latin` stands for the code points of all its letters.
        """
        merged: dict[str, Sums] = {}
        for value in sorted(self._sums):
            label = self._label(value)
            merged[label] = merged.get(label, NOTHING) + self._sums[value]
        return [
            Group(label, int(characters), nats / max(characters, 1), hits / ids)
            for label, (characters, ids, nats, hits) in merged.items()
        ]


def characters_of(ids: Ids, vocabulary: Vocabulary) -> tuple[Values, NDArray[np.bool_]]:
    """Return the code point of each id's character, and whether the id is the character's first.

    If ids are bytes, all bytes of a character have its code point. The code points of bytes that
    are not UTF-8 have no meaning.
    """
    begins = vocabulary.begins(ids)
    if not vocabulary.is_bytes:
        return code_points("".join(vocabulary.names))[ids].astype(np.int64), begins
    begins[:1] = True
    sizes = 1 + (ids >= 0xC0) + (ids >= 0xE0).astype(int) + (ids >= 0xF0)
    points = ids & np.array([0, 0x7F, 0x1F, 0x0F, 0x07])[sizes]
    padded = np.append(ids, [0, 0, 0]).astype(np.int64)
    for place in (1, 2, 3):
        following = padded[place : place + len(ids)] & 0x3F
        points = np.where(sizes > place, points << 6 | following, points)
    firsts = np.maximum.accumulate(np.where(begins, np.arange(len(ids)), 0))
    is_valid = (points < 0x110000) & ((points < 0xD800) | (points > 0xDFFF))
    return np.where(is_valid, points, ord(REPLACEMENT))[firsts], begins


def _position(stretch: Stretch) -> Values:
    return np.log2(stretch.contexts).astype(np.int64)


def _position_label(exponent: int) -> str:
    low, high = 2**exponent, 2 ** (exponent + 1) - 1
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _code_point(stretch: Stretch) -> Values:
    return stretch.points[stretch.scored]


def _word_length(stretch: Stretch) -> Values:
    """Return the length of the word around each scored id, at most LONG_WORD; 0 between words."""
    distinct, places = np.unique(stretch.points, return_inverse=True)
    in_word = np.array([_is_in_word(point) for point in distinct.tolist()])[places]
    begins_run = np.diff(in_word, prepend=~in_word[:1])
    lengths = np.add.reduceat(stretch.begins.astype(np.int64), np.flatnonzero(begins_run))
    around = lengths[np.cumsum(begins_run) - 1]
    return np.where(in_word, np.minimum(around, LONG_WORD), 0)[stretch.scored]


def _word_length_label(length: int) -> str:
    if length == 0:
        return "between words"
    return f"{length} or more" if length == LONG_WORD else str(length)


@cache
def _is_in_word(point: int) -> bool:
    return unicodedata.category(chr(point))[0] in "LMN"


@cache
def script_of(point: int) -> str:
    """Return the script of a letter, such as `Latin`, or the kind of a character: `digit`.

    The script is the first word of the letter's Unicode name.
    """
    character = chr(point)
    kind = unicodedata.category(character)[0]
    if character == REPLACEMENT:
        return "unknown"
    if kind in OTHER_KINDS:
        return "space" if character.isspace() else OTHER_KINDS[kind]
    return unicodedata.name(character, "unnamed").split()[0].capitalize()


PROPERTIES: dict[str, tuple[Callable[[Stretch], Values], Callable[[int], str]]] = {
    "position": (_position, _position_label),
    "script": (_code_point, script_of),
    "word-length": (_word_length, _word_length_label),
    "character": (_code_point, chr),
}
"""For each property: functions that return its value for each scored id, and a value's label."""
