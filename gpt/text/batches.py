"""Batches of windows of a text: ids as inputs, and the same ids shifted by one as targets."""

import numpy as np
import torch
from numpy.typing import NDArray

from gpt.seeds import random_stream
from gpt.text.vocabulary import MASKED, Ids

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs x and targets y, int64, (B, T) each."""


def batch(ids: Ids, B: int, T: int, *, seed: int, step: int) -> Batch:
    """Return inputs and targets: `B` random windows of `T` ids, and the same windows one id later.

    The result depends only on the arguments. Windows are drawn in epochs: each epoch cuts the text
    at a random offset into consecutive windows, and draws each window once, in random order. With
    constant `B` and `T`, an epoch uses no part of the text twice, and omits fewer than 2 `T` ids.
    Windows drawn with replacement would repeat some parts of the text and omit many.
    """
    last = len(ids) - T  # every window starts before this index
    count = max(last // T, 1)  # number of windows in an epoch
    epochs, positions = np.divmod(step * B + np.arange(B), count)
    starts = np.empty(B, np.int64)
    for epoch in np.unique(epochs):
        stream, drawn = random_stream(seed, "batch", int(epoch)), epochs == epoch
        offset = int(stream.integers(last))
        # the starts wrap around at `last`, so that each window ends before the end of the text
        starts[drawn] = (offset + T * shuffled(positions[drawn], count, stream)) % last
    windows = to_torch(ids[starts[:, None] + np.arange(T + 1)])  # (B, T + 1)
    return windows[:, :-1], windows[:, 1:]


def shuffled(positions: NDArray[np.int_], n: int, stream: np.random.Generator) -> NDArray[np.int_]:
    """Return the elements at `positions` of a random permutation of 0 to `n` - 1.

    The permutation is not stored. A Feistel network, with keys drawn from `stream`, permutes the
    numbers from 0 to 4^k - 1, where 4^k >= `n`. A result is permuted again until it is below
    `n` ("cycle walking": Black and Rogaway 2002, "Ciphers with arbitrary finite domains", sections
    3 and 4).
    """
    half = np.uint64(max((n - 1).bit_length() + 1, 2) // 2)
    keys = stream.integers(2**64, size=6, dtype=np.uint64)
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


def token_dropout(ids: torch.Tensor, p: float, *, seed: int, step: int) -> torch.Tensor:
    """Return a copy of `ids` in which each id is MASKED (embedded as zero) with probability `p`.

    The draws depend only on `seed` and `step`. This is "word dropout" (arXiv:1511.06349, section
    3.2.1), applied to characters. It prevents the model from relying on single characters.
    """
    drawn = random_stream(seed, "hidden", step).random(ids.shape)
    return torch.from_numpy(np.where(drawn < p, MASKED, ids.numpy()))


def to_torch(ids: Ids) -> torch.Tensor:
    """Return `ids` as an int64 tensor, which torch's embeddings accept."""
    return torch.from_numpy(ids.astype(np.int64))
