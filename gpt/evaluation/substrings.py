"""Find which substrings of some short texts also occur in a long text, in bounded memory.

The short texts are called pieces. Each distinct substring of n ids of the pieces has a number. A
longer substring, of up to 2 n ids, has a key: the numbers of its first n and of its last n ids. The
keys of all such substrings of the pieces are sorted, and the number of a longer substring is the
index of its key. This is done for n = 1, 2, 4, ... in turn.

M: ids of the joined pieces, K: distinct substrings of one length, N: ids of a part of the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt.text.vocabulary import Ids

COPY_LENGTHS = (8, 16, 32, 64, 128)  # ids of the substrings that are counted; powers of 2
SEARCHED_IDS = 2**20  # ids of the text that are searched at once
ABSENT = -1  # number of a substring that does not occur in the pieces
SEPARATOR = -2  # id between two pieces, which no text has

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Copies:
    """Substrings of some short texts ("pieces") that also occur in a long text.

    Attributes:
        shares: for each length n in COPY_LENGTHS, the fraction of the pieces' substrings of n ids
            that occur in the long text. Lengths above that of the longest piece are left out.
        longest: the ids of the longest substring that occurs in the long text.
    """

    shares: dict[int, float]
    longest: Ids


@dataclass(frozen=True)
class _Table:
    """The distinct substrings of `n` ids of the pieces (short texts), numbered from 0.

    Attributes:
        n: the number of ids of a substring.
        keys: (K,) for each distinct substring, the numbers of its first and last ids, combined into
            one integer (see `pairs`). The keys are sorted; a substring's number is its key's index.
        numbers: (M - n + 1,) the number of the substring at each of the M ids of the joined pieces,
            except the last n - 1.
    """

    n: int
    keys: Numbers
    numbers: Numbers

    def extended(self, n: int) -> "_Table":
        """Return the table of the pieces' substrings of `n` ids; `n` is at most 2 `self.n`."""
        return _Table(n, *np.unique(self.pairs(self.numbers, n), return_inverse=True))

    def pairs(self, numbers: Numbers, n: int) -> Numbers:
        """Return the key of the substring of `n` ids at each position of a text.

        `numbers` identify the substrings of `self.n` ids at each position, ABSENT if unknown. A key
        combines those of the first and of the last `self.n` ids; it is ABSENT if one of them is.
        """
        shift = n - self.n
        first, second = numbers[: max(len(numbers) - shift, 0)], numbers[shift:]
        present = (first != ABSENT) & (second != ABSENT)
        return np.where(present, first * len(self.keys) + second, ABSENT)

    def lookup(self, keys: Numbers) -> Numbers:
        """Return the index of each of `keys` in `self.keys`; ABSENT if it is missing there."""
        numbers = np.full(len(keys), ABSENT, np.int64)
        at = np.flatnonzero(keys != ABSENT)
        index = np.searchsorted(self.keys, keys[at]).clip(max=len(self.keys) - 1)
        numbers[at] = np.where(self.keys[index] == keys[at], index, ABSENT)
        return numbers


def find_copies(text: Ids, pieces: Sequence[Ids]) -> Copies:
    """Find the substrings of `pieces` that occur in `text`.

    Args:
        text: the ids to search, which may be memory-mapped.
        pieces: texts of a few thousand ids in total, each with at least one id.
    """
    separator = np.array([SEPARATOR])
    joined = np.concatenate(
        [ids for piece in pieces for ids in (piece.astype(np.int64), separator)]
    )
    most = max(map(len, pieces))
    tables = [_Table(1, *np.unique(joined, return_inverse=True))]
    while 2 * tables[-1].n <= most:
        tables.append(tables[-1].extended(2 * tables[-1].n))
    found = {table.n: np.zeros(len(table.keys), bool) for table in tables}
    longest = text[:0]
    for start in range(0, len(text), SEARCHED_IDS):
        part = text[start : start + SEARCHED_IDS + most - 1]
        numbers = tables[0].lookup(part.astype(np.int64))
        matching = 0  # index of the table of the longest substrings that `part` has
        found[1][numbers[numbers != ABSENT]] = True
        while matching + 1 < len(tables):
            table = tables[matching + 1]
            extended = table.lookup(tables[matching].pairs(numbers, table.n))
            matched = extended[extended != ABSENT]
            if not len(matched):
                break
            found[table.n][matched] = True
            numbers, matching = extended, matching + 1
        longest = _longest(part, tables[matching], numbers, longest)
    shares = {
        table.n: float(found[table.n][table.numbers[inside]].mean())
        for table in tables
        if table.n in COPY_LENGTHS and (inside := _inside(joined, table.n)).any()
    }
    return Copies(shares, longest)


def _longest(part: Ids, table: _Table, numbers: Numbers, longest: Ids) -> Ids:
    """Return the longest substring that `part` shares with the pieces (short texts).

    If `longest`, from an earlier part, has at least as many ids, return `longest`.

    Args:
        part: (N,) ids of a part of the long text. The shared substring has fewer than 2 n ids.
        table: the pieces' substrings of n ids.
        numbers: (N - n + 1,) number in `table` of each substring of n ids of `part`; ABSENT if the
            pieces do not have that substring.
        longest: the longest substring that earlier parts share with the pieces.
    """
    M = len(table.numbers) + table.n - 1
    low, high = max(table.n - 1, len(longest)), min(2 * table.n, M + 1)
    while low + 1 < high:  # a copy of `low` ids may exist, and none of `high` ids does
        n = (low + high) // 2
        at = numbers
        if n > table.n:
            longer = table.extended(n)
            at = longer.lookup(table.pairs(numbers, n))
        positions = np.flatnonzero(at != ABSENT)
        if len(positions):
            low, longest = n, part[positions[0] : positions[0] + n]
        else:
            high = n
    return longest


def _inside(joined: Numbers, n: int) -> NDArray[np.bool_]:
    """Return whether each substring of `n` ids of `joined` is inside one piece.

    `joined` has all pieces (short texts), with a separator between two.
    """
    before = np.concatenate([[0], np.cumsum(joined == SEPARATOR)])
    inside: NDArray[np.bool_] = before[n:] == before[:-n]
    return inside
