"""A random permutation of 0 to n - 1 of which any part can be computed without the others."""

import numpy as np
from numpy.typing import NDArray


def shuffled(positions: NDArray[np.int_], n: int, source: np.random.Generator) -> NDArray[np.int_]:
    """Return the numbers at these positions of a random permutation of 0 to `n` - 1.

    Takes constant memory. A Feistel network permutes the numbers of an even count of bits; results
    of n or more are permuted again ("cycle walking": Black and Rogaway 2002, "Ciphers with
    arbitrary finite domains", sections 3 and 4).
    """
    half = np.uint64(max((n - 1).bit_length() + 1, 2) // 2)
    keys = source.integers(2**64, size=6, dtype=np.uint64)
    mixed, again = positions.astype(np.uint64), np.ones(len(positions), bool)
    while again.any():
        high, low = mixed[again] >> half, mixed[again] & ((np.uint64(1) << half) - np.uint64(1))
        for key in keys:
            hashed = (low ^ key) * np.uint64(0x9E3779B97F4A7C15)
            hashed = (hashed ^ hashed >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93)
            high, low = low, high ^ hashed >> (np.uint64(64) - half)
        mixed[again] = high << half | low
        again = mixed >= n
    return mixed.astype(np.int_)
