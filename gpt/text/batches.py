"""Windows of characters and their one-step shift: what the model sees and what it is to say."""

from collections.abc import Iterator

import numpy as np
import torch

from gpt.device import generator
from gpt.text.vocabulary import Ids

EVAL_CHARACTERS = 8192  # scored at once in an evaluation; bounds its memory


def batch(ids: Ids, B: int, T: int, *, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """B random windows of T ids and the ids that follow each: x and y, int64, (B, T) each.

    A pure function of (seed, step): the windows of step 137 are the same in every run.
    """
    starts = torch.randint(len(ids) - T, (B, 1), generator=generator(seed, "batch", step))
    windows = ids[starts.numpy() + np.arange(T + 1)]  # (B, T + 1)
    ids_of = torch.from_numpy(windows.astype(np.int64))
    return ids_of[:, :-1], ids_of[:, 1:]


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
