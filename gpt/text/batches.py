"""Windows of characters and their one-step shift: what the model sees and what it is to say."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from gpt.seeds import uniforms
from gpt.text.vocabulary import HIDDEN, Ids

EVAL_CHARACTERS = 4096  # scored at once in an evaluation, by each thread; bounds its memory


def batch(ids: Ids, B: int, T: int, *, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """B windows of T ids and the ids that follow each: x and y, int64, (B, T) each.

    One pass over the text after the other, each in a random order of its own. As long as B and T
    stay what they are, a pass reads no character twice and leaves out fewer than 2 T, where it
    begins and at the text's ends; windows drawn anywhere would by chance read some characters often
    and others never.

    A pure function of (seed, step): the windows of step 137 are the same in every run.
    """
    passes, places = np.divmod(step * B + np.arange(B), _windows(len(ids), T))
    starts = np.concatenate(
        [
            _starts(len(ids), T, seed, int(number), places[passes == number])
            for number in np.unique(passes)
        ]
    )
    windows = ids[starts[:, None] + np.arange(T + 1)]  # (B, T + 1)
    ids_of = torch.from_numpy(windows.astype(np.int64))
    return ids_of[:, :-1], ids_of[:, 1:]


def _windows(length: int, T: int) -> int:
    """How many windows a pass has; wherever it begins, so many fit without touching."""
    return max((length - T) // T, 1)


def _starts(
    length: int, T: int, seed: int, number: int, places: NDArray[np.int_]
) -> NDArray[np.int_]:
    """Where those windows begin that stand at these places in the order of a pass.

    The windows follow one another from a random start, around the end to the beginning.
    """
    source = uniforms(seed, "batch", number)
    first = int(source.integers(length - T))
    order = _shuffled(places, _windows(length, T), source)
    return (first + T * order) % (length - T)


def _shuffled(places: NDArray[np.int_], n: int, source: np.random.Generator) -> NDArray[np.int_]:
    """What stands at these places of a random order of 0 to n - 1; no list of n is made.

    A Feistel network mixes the numbers of an even count of bits, each into another; those that
    become n or more are mixed again (Black and Rogaway 2002, "Ciphers with arbitrary finite
    domains", sections 3 and 4).
    """
    half = np.uint64(max((n - 1).bit_length() + 1, 2) // 2)
    keys = source.integers(2**64, size=6, dtype=np.uint64)
    mixed, again = places.astype(np.uint64), np.ones(len(places), bool)
    while again.any():
        high, low = mixed[again] >> half, mixed[again] & ((np.uint64(1) << half) - np.uint64(1))
        for key in keys:
            hashed = (low ^ key) * np.uint64(0x9E3779B97F4A7C15)
            hashed = (hashed ^ hashed >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93)
            high, low = low, high ^ hashed >> (np.uint64(64) - half)
        mixed[again] = high << half | low
        again = mixed >= n
    return mixed.astype(np.int_)


def hide(ids: torch.Tensor, share: float, *, seed: int, step: int) -> torch.Tensor:
    """The same ids, of which this share, drawn one by one, is HIDDEN.

    "Word dropout" (arXiv:1511.06349, section 3.2.1): no character is relied on too much. A pure
    function of (seed, step).
    """
    drawn = torch.from_numpy(uniforms(seed, "hidden", step).random(ids.shape))
    return ids.masked_fill(drawn < share, HIDDEN)


def consecutive_windows(ids: Ids, T: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The whole of `ids` as windows of T that do not overlap: x and y, (B, T), then (1, rest).

    Every id but the first stands in y exactly once.
    """
    whole = (len(ids) - 1) // T * T
    B = max(1, EVAL_CHARACTERS // T)
    for start in range(0, whole, B * T):
        end = min(start + B * T, whole)
        x, y = ids[start:end], ids[start + 1 : end + 1]
        yield to_torch(x).view(-1, T), to_torch(y).view(-1, T)
    if whole < len(ids) - 1:
        yield to_torch(ids[whole:-1]).view(1, -1), to_torch(ids[whole + 1 :]).view(1, -1)


def to_torch(ids: Ids) -> torch.Tensor:
    """The same ids as int64, which torch's embeddings take."""
    return torch.from_numpy(ids.astype(np.int64))
