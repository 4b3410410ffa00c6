"""Find which substrings of some short texts ("pieces") also occur in a long text.

Substrings are compared by hashes of 64 bits. Different substrings can have the same hash, but
hardly ever do: for 10,000 substrings of pieces in a text of 10^9 ids, the probability is 10^-6.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt.text.vocabulary import Ids

COPY_LENGTHS = (8, 16, 32, 64, 128)  # ids of the substrings that are counted
SEARCHED_IDS = 2**20  # ids of the text that are searched at once, which limits memory


def find_copies(text: Ids, pieces: Sequence[Ids]) -> tuple[dict[int, float], Ids]:
    """Find the substrings of `pieces`, a few thousand ids in total, that occur in `text`.

    Return, for each length n in COPY_LENGTHS that is at most that of the longest piece, the
    fraction of the pieces' substrings of n ids that occur in `text`; and the longest substring that
    does.
    """
    most = max(map(len, pieces))
    shares, longest = dict[int, float](), text[:0]
    for n in COPY_LENGTHS:
        if n <= most:
            shares[n], copy = _copied(text, pieces, n)
            longest = copy if len(copy) else longest
    # search between the longest copy found so far and the shortest length without a copy
    excluded = min((n for n, share in shares.items() if not share), default=most + 1)
    while len(longest) + 1 < excluded:
        n = (len(longest) + excluded) // 2
        _, copy = _copied(text, pieces, n)
        longest, excluded = (copy, excluded) if len(copy) else (longest, n)
    return shares, longest


def _copied(text: Ids, pieces: Sequence[Ids], n: int) -> tuple[float, Ids]:
    """Return the fraction of the pieces' substrings of `n` ids that occur in `text`, and one."""
    hashes = np.concatenate([_hashes(piece, n) for piece in pieces])
    distinct, numbers = np.unique(hashes, return_inverse=True)
    begins = np.zeros(2**20, bool)  # whether a hash begins with these 20 bits
    begins[distinct >> np.uint64(44)] = True
    occurs, copy = np.zeros(len(distinct), bool), text[:0]
    for start in range(0, len(text), SEARCHED_IDS):
        part = text[start : start + SEARCHED_IDS + n - 1]
        hashes = _hashes(part, n)
        places = np.flatnonzero(begins[hashes >> np.uint64(44)])  # faster than to search all
        nearest = distinct.searchsorted(hashes[places]).clip(max=len(distinct) - 1)
        is_equal = distinct[nearest] == hashes[places]
        occurs[nearest[is_equal]] = True
        for place in places[is_equal][:1]:
            copy = part[place : place + n]
    return float(occurs[numbers].mean()), copy


def _hashes(ids: Ids, n: int) -> NDArray[np.uint64]:
    """Return a hash of each substring of `n` ids, (len(ids) - n + 1,)."""
    factor, length = np.uint64(0x9E3779B97F4A7C15), 1
    hashes = (ids.astype(np.uint64) + np.uint64(1)) * factor
    while length < n:  # a longer substring is covered by two substrings of `length` ids
        shift = min(length, n - length)
        first, second = hashes[:-shift], hashes[shift:]
        hashes = (first ^ first >> np.uint64(29)) * factor + second
        length += shift
    return hashes
