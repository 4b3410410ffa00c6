"""Passages of the val split that also stand in the train split: there, to memorise is to predict.

What is compared is letters and digits alone, in lower case, so that other spaces, line ends and
punctuation hide no duplicate. Train is cut into blocks of BLOCK letters, and each is looked up
among the hashes of val at every offset: the algorithm of rsync (Tridgell and Mackerras 1996, "The
rsync algorithm"). So train is read once, and whatever is twice as long as a block contains one.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt.evaluation.spread import spread_slices
from gpt.text.vocabulary import Ids

BLOCK = 40  # letters: about 50 characters of English; a multiple of 8, for hashing by words
GUARANTEED = 2 * BLOCK - 1  # letters of a duplicate that is always found: a block is in it
LARGEST_GAP = 2 * BLOCK  # letters between two blocks of one passage: a few changed characters
SCANNED_IDS = 2**22  # of val, evenly spread
PART_IDS = 2**20  # of train, at once
REACH_IDS = 2**10  # around a block, to find where its passage ends; parts overlap by as many
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Letters = NDArray[np.unsignedinteger]
Hashes = NDArray[np.uint64]
Positions = NDArray[np.int64]


class Passage(NamedTuple):
    """val[start:end], the like of which begins in train at train_start."""

    start: int
    end: int
    train_start: int


@dataclass(frozen=True)
class Duplicates:
    """The passages in the order of val; `scanned` ids of val were looked for in all of train."""

    passages: list[Passage]
    scanned: int

    @property
    def share(self) -> float:
        """How much of what was scanned lies in a passage."""
        return sum(p.end - p.start for p in self.passages) / max(self.scanned, 1)


def find_duplicates(train: Ids, val: Ids, characters: str) -> Duplicates:
    """The passages of val that stand in train, too, but perhaps for a few characters.

    characters: what the ids stand for. Takes the memory of SCANNED_IDS, however long train is.
    """
    letters, passages = _Letters(characters), []
    slices = spread_slices(
        len(val), SCANNED_IDS, SCANNED_IDS if len(val) <= SCANNED_IDS else PART_IDS
    )
    blocks = [_block_at_every_offset(letters.of(val[part])) for part in slices]
    scanned = sum(part.stop - part.start for part in slices)
    if not any(map(len, blocks)):
        return Duplicates([], scanned)
    hashes, index = np.unique(np.concatenate(blocks), return_inverse=True)
    train_starts = _find_in(train, hashes, letters)[index]
    for part in slices:
        here, train_starts = np.split(train_starts, [len(blocks.pop(0))])
        passages += [
            Passage(part.start + start, part.start + end, train_start)
            for start, end, train_start in _passages(val[part], here, train, letters)
        ]
    return Duplicates(passages, scanned)


class _Letters:
    """Leaves the letters and digits of a text, in lower case; combining marks count as letters."""

    def __init__(self, characters: str) -> None:
        folded = [c.lower()[0] for c in characters]
        index = {c: i for i, c in enumerate(folded)}
        self._dtype = np.min_scalar_type(max(len(characters) - 1, 0))
        self._folded = np.array([index[c] for c in folded], self._dtype)  # (V,)
        self._is_letter = np.array([unicodedata.category(c)[0] in "LMN" for c in folded])  # (V,)

    def places(self, ids: Ids) -> Positions:
        """Where the letters are."""
        return np.flatnonzero(self._is_letter[ids])

    def of(self, ids: Ids) -> Letters:
        """The letters alone."""
        if self._dtype == np.uint8:  # a few times as fast
            dropped = np.flatnonzero(~self._is_letter).astype(np.uint8).tobytes()
            table = self._folded.tobytes().ljust(256)
            return np.frombuffer(ids.tobytes().translate(table, dropped), np.uint8)
        kept: Letters = self._folded[ids[self._is_letter[ids]]]
        return kept


def _block_hashes(letters: Letters) -> Hashes:
    """A hash of each BLOCK letters, (n,) -> (n // BLOCK,); what is left at the end has none."""
    n = len(letters) // BLOCK
    words = letters[: n * BLOCK].view(np.uint64).reshape(n, BLOCK * letters.itemsize // 8)
    hashes = np.zeros(n, np.uint64)
    for i in range(words.shape[1]):  # multiply and shift, as the mixers of MurmurHash do
        hashes ^= words[:, i]
        hashes *= MULTIPLIER
        hashes ^= hashes >> np.uint64(32)
    return hashes


def _block_at_every_offset(letters: Letters) -> Hashes:
    """The hash of the BLOCK letters from each letter on, (n,) -> (n - BLOCK + 1,)."""
    hashes = np.zeros(max(len(letters) - BLOCK + 1, 0), np.uint64)
    for offset in range(min(BLOCK, len(hashes))):
        hashes[offset::BLOCK] = _block_hashes(letters[offset:])
    return hashes


def _find_in(train: Ids, hashes: Hashes, letters: _Letters) -> Positions:
    """Where in train a block with each of these ascending hashes first begins; -1 if none does."""
    first = np.full(len(hashes), -1)
    bits = min(len(hashes).bit_length() + 4, 32)
    shift = np.uint64(64 - bits)
    occurs = np.zeros(2**bits, bool)  # by their first bits: the search of most blocks ends here
    occurs[hashes >> shift] = True
    for start in range(0, len(train), PART_IDS):
        part = train[start : start + PART_IDS + REACH_IDS]
        blocks = _block_hashes(letters.of(part))
        candidates = np.flatnonzero(occurs[blocks >> shift])
        index = np.minimum(np.searchsorted(hashes, blocks[candidates]), len(hashes) - 1)
        new = (hashes[index] == blocks[candidates]) & (first[index] < 0)
        if new.any():  # reversed: of a block that occurs twice here, the first
            places = letters.places(part)[candidates[new] * BLOCK] + start
            first[index[new][::-1]] = places[::-1]
    return first


def _passages(
    val: Ids, train_starts: Positions, train: Ids, letters: _Letters
) -> Iterator[tuple[int, int, int]]:
    """Start, end and start in train, by where in train the block from each letter of val begins."""
    found = np.flatnonzero(train_starts >= 0)
    if not len(found):
        return
    ours, places = letters.of(val), letters.places(val)
    breaks = np.flatnonzero(np.diff(found) > BLOCK + LARGEST_GAP) + 1
    for blocks in np.split(found, breaks):
        first, last = int(blocks[0]), int(blocks[-1])
        begins, ends = int(train_starts[first]), int(train_starts[last])
        before = train[max(begins - REACH_IDS, 0) : begins]
        more = _common(ours[:first][::-1], letters.of(before)[::-1])
        if more:
            begins -= len(before) - int(letters.places(before)[-more])
        theirs = letters.of(train[ends : ends + REACH_IDS])
        last += BLOCK + _common(ours[last + BLOCK :], theirs[BLOCK:])
        yield int(places[first - more]), int(places[last - 1]) + 1, begins


def _common(a: Letters, b: Letters) -> int:
    """How many letters both begin with, fewer than BLOCK."""
    n = min(len(a), len(b), BLOCK - 1)
    return int(np.argmax(np.append(a[:n] != b[:n], True)))
