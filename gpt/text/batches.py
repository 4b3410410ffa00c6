"""Windows of ids and their one-step shift: the model's input and its targets."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from gpt.seeds import uniforms
from gpt.text.shuffle import shuffled
from gpt.text.vocabulary import MASKED, Ids

EVAL_CHARACTERS = 4096  # in one forward pass of an evaluation, per thread: bounds its memory


def batch(ids: Ids, B: int, T: int, *, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """B windows of T ids and the ids that follow each: x and y, int64, (B, T) each.

    Epoch after epoch, each with an offset and a random order of its own. As long as B and T are
    constant, an epoch holds no character twice and omits fewer than 2 T, at its offset and at the
    text's ends; windows drawn with replacement would hold some characters often and others never.

    A pure function of (seed, step): the windows of step 137 are the same in every run.
    """
    epochs, positions = np.divmod(step * B + np.arange(B), _windows(len(ids), T))
    starts = np.concatenate(
        [
            _starts(len(ids), T, seed, int(epoch), positions[epochs == epoch])
            for epoch in np.unique(epochs)
        ]
    )
    windows = ids[starts[:, None] + np.arange(T + 1)]  # (B, T + 1)
    ids_of = torch.from_numpy(windows.astype(np.int64))
    return ids_of[:, :-1], ids_of[:, 1:]


def _windows(length: int, T: int) -> int:
    """The number of windows in an epoch, whatever its offset."""
    return max((length - T) // T, 1)


def _starts(
    length: int, T: int, seed: int, epoch: int, positions: NDArray[np.int_]
) -> NDArray[np.int_]:
    """Where the windows at these positions of an epoch's order begin.

    The windows of an epoch are consecutive from a random offset on, around the end of the text.
    """
    source = uniforms(seed, "batch", epoch)
    offset = int(source.integers(length - T))
    order = shuffled(positions, _windows(length, T), source)
    return (offset + T * order) % (length - T)


def token_dropout(ids: torch.Tensor, p: float, *, seed: int, step: int) -> torch.Tensor:
    """The same ids, each MASKED with probability p (a token is a character).

    "Word dropout" (arXiv:1511.06349, section 3.2.1): no single character is relied on too much. A
    pure function of (seed, step).
    """
    drawn = uniforms(seed, "hidden", step).random(ids.shape)
    return torch.from_numpy(np.where(drawn < p, MASKED, ids.numpy()))


def consecutive_windows(ids: Ids, T: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """All of `ids` as windows of T that do not overlap: x and y, (B, T), at last (1, remainder).

    Every id but the first is in y exactly once.
    """
    whole = (len(ids) - 1) // T * T
    B = max(1, EVAL_CHARACTERS // T)
    for start in range(0, whole, B * T):
        end = min(start + B * T, whole)
        x, y = ids[start:end], ids[start + 1 : end + 1]
        yield to_torch(x).view(-1, T), to_torch(y).view(-1, T)
    if whole < len(ids) - 1:
        yield to_torch(ids[whole:-1]).view(1, -1), to_torch(ids[whole + 1 :]).view(1, -1)


def spread_windows(
    ids: Ids, T: int, characters: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """About so many characters, evenly spread: x and y, (B, T), of some `consecutive_windows`.

    At least one window, and at most all of T.
    """
    windows = (len(ids) - 1) // T
    n = max(1, min(windows, characters // T))
    starts = np.arange(n) * windows // n * T
    B = max(1, EVAL_CHARACTERS // T)
    for i in range(0, n, B):
        chosen = to_torch(ids[starts[i : i + B, None] + np.arange(T + 1)])  # (B, T + 1)
        yield chosen[:, :-1], chosen[:, 1:]


def scored_windows(
    ids: Ids, T: int, characters: int | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What an evaluation scores: all `consecutive_windows`, or `spread_windows` of longer ids."""
    if characters is None or characters >= len(ids) - 1 or len(ids) <= T:
        return consecutive_windows(ids, T)
    return spread_windows(ids, T, characters)


def to_torch(ids: Ids) -> torch.Tensor:
    """The same ids as int64, as torch's embeddings expect."""
    return torch.from_numpy(ids.astype(np.int64))
