"""What in a text is likely to be damage, dirt or a trick, and would be learnt like all else."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from gpt.evaluation.characters import LISTED, CountedText, Finding

COUNTED_PLACES = 10_000  # of words, to count each of them
LONGEST_WORD = 30  # characters, to either side
CATEGORIES = {  # Unicode's general categories that a text to learn from seldom needs
    "Cc": "control",
    "Cf": "invisible or direction",
    "Zl": "line separator",
    "Zp": "line separator",
    "Zs": "unusual space",
    "Co": "private use",
    "Cn": "unassigned",
}
USUAL = "\n\t \u3000"
REPLACED, MOJIBAKE, MIXED = "replacement character", "mojibake", "mixed scripts in a word"
KINDS = (REPLACED, MOJIBAKE, MIXED, *dict.fromkeys(CATEGORIES.values()))

# Scripts that are written with spaces between words: in others any may follow any.
SCRIPTS = (
    "LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC", "SYRIAC",
    "THAANA", "ETHIOPIC", "CHEROKEE", "COPTIC", "DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI",
    "ORIYA", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA", "MONGOLIAN",
)  # fmt: skip

# UTF-8 that was decoded as Windows-1252 or Latin-1: what its first bytes became, and the next.
CONTINUATION = bytes(range(0x80, 0xC0))
MISREAD = (
    ("ÂÃÐÑ", CONTINUATION.decode("cp1252", "ignore") + CONTINUATION.decode("latin-1")),
    ("â", "€\x80"),
    ("ï", "»"),
)

Places = Iterator[NDArray[np.int64]]
"""Positions in a text, ascending, some at a time."""


@dataclass(frozen=True)
class Suspicion:
    """All of one of KINDS: how many places, how many different ones, the most frequent of them."""

    kind: str
    count: int
    distinct: int
    findings: list[Finding]


def find_suspicious(text: CountedText) -> list[Suspicion]:
    """What there is of KINDS, in their order.

    Most are single characters (`kind_of`). A word has mixed scripts if two letters that follow
    each other in it are of different SCRIPTS, by the first words of their names in Unicode: nearly
    their scripts, and a small part of what UTS 39, section 5, looks at. Mojibake is UTF-8 that was
    decoded as Windows-1252 or Latin-1, by the most frequent of the pairs that this makes.
    """
    by_kind: dict[str, list[int]] = {}
    for i in np.argsort(-text.counts, stable=True).tolist():
        if text.counts[i] and (kind := kind_of(text.characters[i])):
            by_kind.setdefault(kind, []).append(i)
    found = [
        Suspicion(kind, int(text.counts[ids].sum()), len(ids), text.characters_found(ids[:LISTED]))
        for kind, ids in by_kind.items()
    ]
    found.append(_words(text, MOJIBAKE, _misread(text), lambda at: text.text(at, at + 2), _meant))
    found.append(_words(text, MIXED, _mixed(text), lambda at: _word(text, at), _scripts))
    return sorted(
        (suspicion for suspicion in found if suspicion.count),
        key=lambda suspicion: KINDS.index(suspicion.kind),
    )


def kind_of(character: str) -> str | None:
    """One of KINDS by the character's category in Unicode; None if it is not suspicious."""
    if character == "\ufffd":
        return REPLACED
    return None if character in USUAL else CATEGORIES.get(unicodedata.category(character))


def script_of(character: str) -> str:
    """One of SCRIPTS if the character is a letter of it, else nothing."""
    first, *_ = unicodedata.name(character, "-").split()
    return first if first in SCRIPTS and unicodedata.category(character)[0] == "L" else ""


def _mixed(text: CountedText) -> Places:
    """Where a letter is followed by one of another script."""
    order = ["", *SCRIPTS]
    scripts = np.array([order.index(script_of(c)) for c in text.characters], np.uint8)  # (V,)

    for start, part in text.parts(lambda occurring: len(set(scripts[occurring]) - {0}) > 1):
        here, after = scripts[part[:-1]], scripts[part[1:]]
        yield start + np.flatnonzero((here != after) & (here > 0) & (after > 0))


def _misread(text: CountedText) -> Places:
    """Where a character of MISREAD is followed by one of those that go with it."""
    first, second = (_bits(text.characters, [*sets]) for sets in zip(*MISREAD, strict=True))

    for start, part in text.parts(lambda occurring: first[occurring].any()):
        yield start + np.flatnonzero(first[part[:-1]] & second[part[1:]])


def _bits(characters: str, sets: list[str]) -> NDArray[np.uint8]:
    """(V,): for each character, a bit for each of the sets that it is in."""
    bits = [sum((c in each) << bit for bit, each in enumerate(sets)) for c in characters]
    return np.array(bits, np.uint8)


def _words(
    text: CountedText,
    kind: str,
    places: Places,
    word_at: Callable[[int], str],
    name_of_word: Callable[[str], str],
) -> Suspicion:
    """The words at these places, counted among the first COUNTED_PLACES of them."""
    total, first, counts = 0, dict[str, int](), Counter[str]()
    for positions in places:
        for position in positions[: max(COUNTED_PLACES - total, 0)].tolist():
            word = word_at(position)
            counts[word] += 1
            first.setdefault(word, position)
        total += len(positions)
    findings = [
        text.finding(word, name_of_word(word), count, first[word])
        for word, count in counts.most_common(LISTED)
    ]
    return Suspicion(kind, total, len(counts), findings)


def _word(text: CountedText, position: int) -> str:
    """The letters and marks around a position, at most LONGEST_WORD to either side."""
    before = text.text(position - LONGEST_WORD, position + 1)
    after = text.text(position + 1, position + 1 + LONGEST_WORD)
    start = [*takewhile(_in_word, reversed(before))]
    return "".join([*reversed(start), *takewhile(_in_word, after)])


def _in_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LM"


def _scripts(word: str) -> str:
    """`LATIN and CYRILLIC`, in the order of the word."""
    return " and ".join(dict.fromkeys(filter(None, map(script_of, word))))


def _meant(pair: str) -> str:
    """What the pair was before it was misread, where two characters tell."""
    for encoding in ("cp1252", "latin-1"):
        try:
            return f"was {pair.encode(encoding).decode()}"
        except UnicodeError:
            continue
    return ""
