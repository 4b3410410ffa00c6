"""The characters of a text: how often each occurs, where first, and which are rare."""

import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt.text.vocabulary import Ids, code_points

RARE = 10  # a character that occurs less often is rare: too few to learn it from
LISTED = 100  # of rare characters, and of those that are suspicious for one reason
BEFORE, AFTER = 8, 22  # characters around what is shown
PART_IDS = 2**18
CONTROL_NAMES = {  # which Unicode's data leave out
    "\0": "NULL", "\x07": "BELL", "\b": "BACKSPACE", "\t": "TABULATION", "\n": "LINE FEED",
    "\v": "LINE TABULATION", "\f": "FORM FEED", "\r": "CARRIAGE RETURN", "\x1a": "SUBSTITUTE",
    "\x1b": "ESCAPE", "\x7f": "DELETE", "\x85": "NEXT LINE",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A character or a word, how often it occurs, and where first.

    `position` counts characters from 0, over all documents as they are joined, `line` from 1.
    """

    text: str
    name: str
    count: int
    position: int
    line: int
    excerpt: str


class CountedText:
    """A text as ids of its sorted distinct characters, counted in one pass.

    `counts` (V,) is how often each character occurs, `first` (V,) where first.
    """

    def __init__(self, ids: Ids, characters: str) -> None:
        self.ids, self.characters = ids, characters
        self.counts, self.first = np.zeros((2, len(characters)), np.int64)
        newline, lines, self._occurring = characters.find("\n"), [0], []
        for start in range(0, len(ids), PART_IDS):
            part = ids[start : start + PART_IDS]
            counts = np.bincount(part, minlength=len(characters))
            if ((counts > 0) & (self.counts == 0)).any():
                found, first = np.unique(part, return_index=True)
                new = self.counts[found] == 0
                self.first[found[new]] = start + first[new]
            self.counts += counts
            self._occurring.append(np.packbits(counts > 0))
            lines.append(lines[-1] + int(counts[newline] if newline >= 0 else 0))
        self._newline, self._newlines_before = newline, lines  # before each part
        self._code_points = code_points(characters)

    @property
    def lines(self) -> int:
        """How many lines it has; the last may lack its end."""
        return self.line_of(len(self.ids) - 1)

    @property
    def bytes(self) -> int:
        """Its length in UTF-8."""
        return int(self.counts @ [len(c.encode()) for c in self.characters])

    @property
    def frequencies(self) -> dict[str, int]:
        """How often each character occurs, the most frequent first."""
        order = np.argsort(-self.counts, stable=True).tolist()
        return {self.characters[i]: int(self.counts[i]) for i in order}

    @property
    def entropy(self) -> float:
        """Bits per character, of the characters' frequencies."""
        p = self.counts[self.counts > 0] / self.counts.sum()
        return abs(float(p @ np.log2(p)))

    def text(self, start: int, end: int) -> str:
        """The characters from start to end; beyond the text there are none."""
        part = self.ids[max(start, 0) : max(end, 0)]
        return str(self._code_points[part].tobytes(), "utf-32-le")

    def parts(
        self, wanted: Callable[[NDArray[np.bool_]], object], overlap: int = 1
    ) -> Iterator[tuple[int, Ids]]:
        """Yield the text in parts that overlap by `overlap` ids, each with its first position.

        Args:
            wanted: called with (V,), which characters occur; a part is left out if it is false.
            overlap: ids of the next part at the end of each.
        """
        for n, packed in enumerate(self._occurring):
            start, end = n * PART_IDS, (n + 1) * PART_IDS
            occurring = np.unpackbits(packed, count=len(self.characters)).astype(bool)
            occurring[self.ids[end : end + overlap]] = True
            if wanted(occurring):
                yield start, self.ids[start : end + overlap]

    def line_of(self, position: int) -> int:
        """The line of a character, from 1."""
        start = position // PART_IDS * PART_IDS
        newlines = np.count_nonzero(self.ids[start:position] == self._newline)
        return self._newlines_before[position // PART_IDS] + int(newlines) + 1

    def finding(self, text: str, name: str, count: int, position: int) -> Finding:
        """What is at that position, with its line and what stands around it."""
        excerpt = self.text(position - BEFORE, position + len(text) + AFTER)
        return Finding(text, name, count, position, self.line_of(position), excerpt)

    def characters_found(self, ids: list[int]) -> list[Finding]:
        """A finding of each of these characters."""
        return [
            self.finding(c, name_of(c), int(self.counts[i]), int(self.first[i]))
            for i in ids
            for c in self.characters[i]
        ]


def name_of(character: str) -> str:
    """`U+0041 LATIN CAPITAL LETTER A`."""
    name = unicodedata.name(character, CONTROL_NAMES.get(character, ""))
    return f"U+{ord(character):04X} {name}".rstrip()


def rare_characters(text: CountedText) -> tuple[int, list[Finding]]:
    """Count the characters that occur fewer than RARE times, and find the rarest LISTED of them."""
    rare = np.flatnonzero((text.counts > 0) & (text.counts < RARE))
    rarest = rare[np.argsort(text.counts[rare], kind="stable")][:LISTED]
    return len(rare), text.characters_found(rarest.tolist())
