"""The characters of a text: their counts, and which are rare or probably unwanted."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpt.text.vocabulary import Ids, Vocabulary

RARE_COUNT = 10  # number of occurrences below which a character is rare
RARE = f"rare, fewer than {RARE_COUNT} times each"  # `Findings.kind` of the rare characters
MAX_FINDINGS = 100  # largest number of findings of each kind to return
FINDING_BEFORE, FINDING_AFTER = 8, 22  # characters that an excerpt shows before and after a finding
PART_IDS = 2**18  # number of ids that are searched at once
SLICE_IDS = 2**20  # default number of ids in a slice
LONGEST_MATCH = 24  # largest number of characters in a match of a detector
MOJIBAKE = "mojibake"  # name of a detector; its matches are reported only if ftfy confirms them
DETECTORS = {  # kind: (regular expression, what to do)
    "replacement character": (
        re.compile("\ufffd|锟斤拷"),  # the second: UTF-8 bytes of two U+FFFD, decoded as GBK
        "some program could not decode the text; convert the original again",
    ),
    MOJIBAKE: (
        re.compile(f"[\x80-\u2fff\ufb01\ufb02]{{1,{LONGEST_MATCH}}}"),  # UTF-8, read as 8-bit
        "the text was decoded in a wrong encoding; convert the original again",
    ),
    "control": (
        re.compile("[\0-\x08\x0b-\x1f\x7f]"),
        "remove them, or the model will write them, too",
    ),
    "invisible or direction": (
        re.compile("[\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]"),
        "remove them, or the model will write them, too",
    ),
}


def spread_slices(length: int, most: int | None = None, part: int = SLICE_IDS) -> list[slice]:
    """Divide a text of `length` ids into consecutive slices of at most `part` ids.

    If `length` exceeds `most`, return evenly spread slices of at most `most` ids in total.
    """
    if most is None or length <= most:
        return [slice(start, min(start + part, length)) for start in range(0, length, part)]
    part = min(part, most)
    n = most // part
    starts = [i * (length - part) // max(n - 1, 1) for i in range(n)]
    return [slice(start, start + part) for start in starts]


@dataclass(frozen=True)
class Finding:
    """A rare or suspicious string in a text, and where it occurs first."""

    text: str
    name: str
    count: int  # number of occurrences
    line: int  # line number of the first occurrence, from 1
    excerpt: str


@dataclass(frozen=True)
class Findings:
    """The rare characters of a text, or the strings that one of DETECTORS matches."""

    kind: str  # RARE, or a key of DETECTORS
    count: int  # total number of occurrences
    distinct: int  # number of distinct strings
    findings: list[Finding]  # at most MAX_FINDINGS


class CountedText:
    """A text and the counts of its characters.

    `ids` are the text encoded by `vocabulary`, which must contain characters, not bytes.
    """

    def __init__(self, ids: Ids, vocabulary: Vocabulary) -> None:
        self.ids, self.vocabulary = ids, vocabulary
        characters = self.characters = vocabulary.characters
        # for each of `characters`, its count and the position of its first occurrence
        self.counts, self.first = np.zeros((2, len(characters)), np.int64)
        newline, newlines = characters.find("\n"), []
        for start in range(0, len(ids), PART_IDS):
            part = ids[start : start + PART_IDS]
            counts = np.bincount(part, minlength=len(characters))
            if ((counts > 0) & (self.counts == 0)).any():
                found, first = np.unique(part, return_index=True)
                new = self.counts[found] == 0
                self.first[found[new]] = start + first[new]
            self.counts += counts
            newlines.append(start + np.flatnonzero(part == newline))
        self._newlines = np.concatenate([[], *newlines])  # positions of all newlines

    def text(self, start: int, end: int) -> str:
        """Return the characters from `start` to `end` - 1; ignore positions outside the text."""
        return self.vocabulary.decode(self.ids[max(start, 0) : max(end, 0)])

    def unusual_parts(self) -> Iterator[tuple[int, str]]:
        """Yield the start and text of each part that has control or non-ASCII characters.

        A part has PART_IDS characters. The LONGEST_MATCH characters after it are included in its
        text, because a match may begin in one part and end in the next.
        """
        usual = np.array([" " <= c <= "~" or c in "\t\n" for c in self.characters])
        for start in range(0, len(self.ids), PART_IDS):
            end = min(start + PART_IDS + LONGEST_MATCH, len(self.ids))
            if not usual[self.ids[start:end]].all():
                yield start, self.text(start, end)

    def line_of(self, position: int) -> int:
        """Return the line number, from 1, of the character at `position`."""
        return int(np.searchsorted(self._newlines, position)) + 1

    def finding(self, text: str, name: str, count: int, position: int) -> Finding:
        """Return the Finding of `text`, which occurs `count` times, first at `position`."""
        excerpt = self.text(position - FINDING_BEFORE, position + len(text) + FINDING_AFTER)
        return Finding(text, name, count, self.line_of(position), excerpt)


def name_of(character: str) -> str:
    """Return the code point and name of `character`, such as `U+0041 LATIN CAPITAL LETTER A`.

    Return only the code point if there is no name, as for control characters.
    """
    return f"U+{ord(character):04X} {unicodedata.name(character, '')}".rstrip()


def rare_characters(text: CountedText) -> Findings:
    """Find the characters that occur fewer than RARE_COUNT times, the rarest first."""
    rare = np.flatnonzero((text.counts > 0) & (text.counts < RARE_COUNT))
    rarest = rare[np.argsort(text.counts[rare], kind="stable")]
    findings = [
        text.finding(c, name_of(c), int(text.counts[i]), int(text.first[i]))
        for i in rarest[:MAX_FINDINGS].tolist()
        for c in text.characters[i]
    ]
    return Findings(RARE, int(text.counts[rare].sum()), len(rare), findings)


def find_suspicious(text: CountedText) -> list[Findings]:
    """Return the Findings of each detector that matches in `text`, in order of DETECTORS."""
    found = []
    for kind, (pattern, _) in DETECTORS.items():
        counts, first, end = Counter[str](), dict[str, int](), 0
        for start, part in text.unusual_parts():
            for match in pattern.finditer(part, max(end - start, 0)):
                if match.start() >= PART_IDS:  # the next part also contains this match, uncut
                    break
                matched, end = match[0], start + match.end()
                counts[matched] += 1
                first.setdefault(matched, start + match.start())
        if kind == MOJIBAKE and counts:
            from ftfy.badness import is_bad  # the import takes 0.1 s; ASCII text does not need it

            counts = Counter({each: count for each, count in counts.items() if is_bad(each)})
        findings = [
            text.finding(matched, ", ".join(map(name_of, matched)), count, first[matched])
            for matched, count in counts.most_common(MAX_FINDINGS)
        ]
        if findings:
            found.append(Findings(kind, counts.total(), len(counts), findings))
    return found
