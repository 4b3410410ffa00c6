"""Find passages of the val split that also occur in the train split, where a model can memorise.

Only letters and digits are compared, in lower case, so that spaces and punctuation do not hide a
duplicate. BLOCK letters are hashed at every offset of val and at every STEP-th offset of train, as
in rsync (Tridgell and Mackerras 1996).
"""

import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt.text.vocabulary import Ids

BLOCK = 64  # letters of a block: about 80 characters of English
STEP = 16  # letters between two blocks of train
GUARANTEED = BLOCK + STEP - 1  # letters of the shortest passage that is always found
MAX_LETTER_GAP = 80  # letters between two blocks of one passage, such as a few changed ones
MAX_SCANNED_IDS = 2**22  # first ids of val that are compared
TRAIN_PART_IDS = 2**20  # ids of train that are read at once
OVERLAP_IDS = 2**10  # ids by which two parts overlap, so that blocks on the border are found
MULTIPLIER = 0x9E3779B97F4A7C15  # odd; 2**64 / golden ratio


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
    val = val[:MAX_SCANNED_IDS]
    folded = [c.lower()[0] for c in characters]
    first_ids = {c: i for i, c in reversed([*enumerate(folded)])}
    letters = np.array(  # (V,): 0 for an id that is not compared; combining marks are letters
        [1 + first_ids[c] if unicodedata.category(c)[0] in "LMN" else 0 for c in folded], np.uint64
    )
    places, hashes = _hash_blocks(val, letters)
    known, index = np.unique(hashes, return_inverse=True)
    starts = np.full(len(known), -1)  # where in train the first block with this hash begins
    for start in range(0, len(train) if len(known) else 0, TRAIN_PART_IDS):
        train_places, blocks = _hash_blocks(
            train[start : start + TRAIN_PART_IDS + OVERLAP_IDS], letters, STEP
        )
        blocks, first = np.unique(blocks, return_index=True)
        at = np.searchsorted(known, blocks).clip(max=len(known) - 1)
        new = (known[at] == blocks) & (starts[at] < 0)
        starts[at[new]] = start + train_places[first[new] * STEP]
    train_starts = starts[index]  # for the block at each letter of val
    found = np.flatnonzero(train_starts >= 0)
    groups = np.split(found, np.flatnonzero(np.diff(found) > BLOCK + MAX_LETTER_GAP) + 1)
    passages = [
        Passage(
            int(places[group[0]]),
            int(places[group[-1] + BLOCK - 1]) + 1,
            int(train_starts[group[0]]),
        )
        for group in groups
        if len(group)
    ]
    return Duplicates(passages, len(val))


def _hash_blocks(
    ids: Ids, letters: NDArray[np.uint64], step: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the positions of the letters in `ids`, and a hash of the BLOCK letters at each.

    Only every `step`-th block is hashed. The hash is a polynomial of the letters modulo 2**64, so
    the hashes of all blocks are differences of one running sum.
    """
    values = letters[ids]
    places = np.flatnonzero(values)
    values = values[places]
    powers, inverse_powers = (
        np.full(len(values), pow(MULTIPLIER, exponent, 2**64), np.uint64).cumprod()
        for exponent in (1, -1)
    )
    sums = np.append(np.uint64(0), np.cumsum(values * powers))
    blocks = (sums[BLOCK:] - sums[:-BLOCK])[::step]
    return places, blocks * inverse_powers[::step][: len(blocks)]
