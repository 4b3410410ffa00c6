"""Find passages of the val split that also occur in the train split, where a model can memorise.

Only letters and digits are compared, in lower case, so that spaces and punctuation do not hide a
duplicate. Train is cut into blocks of BLOCK letters. Each block is looked up among the hashes of
val at every offset, as in rsync (Tridgell and Mackerras 1996). Train is therefore read once, and
every passage of GUARANTEED letters contains a whole block.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt.evaluation.characters import spread_slices
from gpt.text.vocabulary import Ids

BLOCK = 40  # letters of a block: about 50 characters of English; hashing needs a multiple of 8
GUARANTEED = 2 * BLOCK - 1  # letters of the shortest passage that is always found
MAX_LETTER_GAP = 2 * BLOCK  # letters between two blocks of one passage, such as a few changed ones
MAX_SCANNED_IDS = 2**22  # ids of val that are compared, evenly spread
TRAIN_PART_IDS = 2**20  # ids of train that are read at once
REACH_IDS = 2**10  # ids around a block in which its passage may end; the parts overlap by as many
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, for hashing

LetterArray = NDArray[np.unsignedinteger]
Hashes = NDArray[np.uint64]
Positions = NDArray[np.int64]


class Passage(NamedTuple):
    """val[start:end], which also occurs in train, from `train_start` on."""

    start: int
    end: int
    train_start: int


@dataclass(frozen=True)
class Duplicates:
    """The passages in the order of val, of which `scanned` ids were compared with all of train."""

    passages: list[Passage]
    scanned: int

    @property
    def share(self) -> float:
        """Fraction of the scanned ids that lie in a passage."""
        return sum(p.end - p.start for p in self.passages) / max(self.scanned, 1)


def find_duplicates(train: Ids, val: Ids, characters: str) -> Duplicates:
    """Return the passages of `val` that also occur in `train`, up to a few changed characters.

    `characters` are those that the ids stand for. Memory grows with MAX_SCANNED_IDS, not with the
    length of `train`.
    """
    letters, passages = _Letters(characters), []
    slice_ids = MAX_SCANNED_IDS if len(val) <= MAX_SCANNED_IDS else TRAIN_PART_IDS
    slices = spread_slices(len(val), MAX_SCANNED_IDS, slice_ids)
    blocks = [_hashes_at_every_offset(letters.of(val[part])) for part in slices]
    scanned = sum(part.stop - part.start for part in slices)
    if not any(map(len, blocks)):
        return Duplicates([], scanned)
    hashes, index = np.unique(np.concatenate(blocks), return_inverse=True)
    train_starts = _find_in(train, hashes, letters)[index]
    ends = np.cumsum([len(block) for block in blocks])
    for part, starts in zip(slices, np.split(train_starts, ends[:-1]), strict=True):
        passages += [
            Passage(part.start + start, part.start + end, train_start)
            for start, end, train_start in _passages(val[part], starts, train, letters)
        ]
    return Duplicates(passages, scanned)


class _Letters:
    """Extracts the letters and digits of a text, in lower case; combining marks are letters."""

    def __init__(self, characters: str) -> None:
        folded = [c.lower()[0] for c in characters]
        index = {c: i for i, c in enumerate(folded)}
        self._dtype = np.min_scalar_type(max(len(characters) - 1, 0))
        self._folded = np.array([index[c] for c in folded], self._dtype)  # (V,)
        self._is_letter = np.array([unicodedata.category(c)[0] in "LMN" for c in folded])  # (V,)

    def places(self, ids: Ids) -> Positions:
        """Return the positions of the letters in `ids`."""
        return np.flatnonzero(self._is_letter[ids])

    def of(self, ids: Ids) -> LetterArray:
        """Return the letters of `ids` without anything between them."""
        if self._dtype == np.uint8:  # bytes.translate is a few times as fast as indexing
            dropped = np.flatnonzero(~self._is_letter).astype(np.uint8).tobytes()
            table = self._folded.tobytes().ljust(256)
            return np.frombuffer(ids.tobytes().translate(table, dropped), np.uint8)
        kept: LetterArray = self._folded[ids[self._is_letter[ids]]]
        return kept


def _block_hashes(letters: LetterArray) -> Hashes:
    """Hash each whole block of `letters`: (n,) -> (n // BLOCK,)."""
    n = len(letters) // BLOCK
    words = letters[: n * BLOCK].view(np.uint64).reshape(n, BLOCK * letters.itemsize // 8)
    hashes = np.zeros(n, np.uint64)
    for i in range(words.shape[1]):  # multiply and shift, as MurmurHash mixes its words
        hashes ^= words[:, i]
        hashes *= MULTIPLIER
        hashes ^= hashes >> np.uint64(32)
    return hashes


def _hashes_at_every_offset(letters: LetterArray) -> Hashes:
    """Hash the BLOCK letters that begin at each letter: (n,) -> (n - BLOCK + 1,)."""
    hashes = np.zeros(max(len(letters) - BLOCK + 1, 0), np.uint64)
    for offset in range(min(BLOCK, len(hashes))):
        hashes[offset::BLOCK] = _block_hashes(letters[offset:])
    return hashes


def _find_in(train: Ids, hashes: Hashes, letters: _Letters) -> Positions:
    """Return where in `train` the first block with each of the ascending `hashes` begins, or -1."""
    first = np.full(len(hashes), -1)
    bits = min(len(hashes).bit_length() + 4, 32)
    shift = np.uint64(64 - bits)
    occurs = np.zeros(2**bits, bool)  # indexed by the first bits, which rule out most blocks
    occurs[hashes >> shift] = True
    for start in range(0, len(train), TRAIN_PART_IDS):
        part = train[start : start + TRAIN_PART_IDS + REACH_IDS]
        blocks = _block_hashes(letters.of(part))
        candidates = np.flatnonzero(occurs[blocks >> shift])
        index = np.minimum(np.searchsorted(hashes, blocks[candidates]), len(hashes) - 1)
        new = (hashes[index] == blocks[candidates]) & (first[index] < 0)
        if new.any():  # assigned in reverse: the first of several equal blocks remains
            places = letters.places(part)[candidates[new] * BLOCK] + start
            first[index[new][::-1]] = places[::-1]
    return first


def _passages(
    val: Ids, train_starts: Positions, train: Ids, letters: _Letters
) -> Iterator[tuple[int, int, int]]:
    """Yield the start and end in `val` and the start in `train` of each passage.

    `train_starts` has, for each letter of `val`, the position in `train` of the block that begins
    there, or -1.
    """
    found = np.flatnonzero(train_starts >= 0)
    if not len(found):
        return
    val_letters, places = letters.of(val), letters.places(val)
    breaks = np.flatnonzero(np.diff(found) > BLOCK + MAX_LETTER_GAP) + 1
    for blocks in np.split(found, breaks):
        first, last = int(blocks[0]), int(blocks[-1])
        train_start, train_last = int(train_starts[first]), int(train_starts[last])
        before = train[max(train_start - REACH_IDS, 0) : train_start]
        added = _common_prefix(val_letters[:first][::-1], letters.of(before)[::-1])
        if added:
            train_start -= len(before) - int(letters.places(before)[-added])
        following = letters.of(train[train_last : train_last + REACH_IDS])
        last += BLOCK + _common_prefix(val_letters[last + BLOCK :], following[BLOCK:])
        yield int(places[first - added]), int(places[last - 1]) + 1, train_start


def _common_prefix(a: LetterArray, b: LetterArray) -> int:
    """Return how many letters `a` and `b` have in common at their start, fewer than BLOCK."""
    n = min(len(a), len(b), BLOCK - 1)
    return int(np.argmax(np.append(a[:n] != b[:n], True)))
