"""The windows of a text in which a loss is computed: each id but the first is scored once."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from gpt.text.batches import Batch, to_torch
from gpt.text.vocabulary import Ids

EVAL_CHARACTERS = 4096  # ids per forward pass of an evaluation thread; more would need more memory
ACCELERATOR_EVAL_CHARACTERS = 2**16  # ids per forward pass on an accelerator; fewer are slower


def scored_windows(
    ids: Ids, T: int, max_targets: int | None = None, max_batch: int | None = None
) -> Iterator[Batch]:
    """Yield inputs and targets (B, `T`) of windows that do not overlap.

    By default, the windows are consecutive, and each id but the first is a target exactly once. If
    fewer than `T` targets remain at the end, they form a last batch of one shorter window.

    If there are more than `max_targets` targets, yield only some whole windows (at least one),
    spread evenly over the text. A batch has at most `max_batch` ids, by default EVAL_CHARACTERS,
    but at least one window.
    """
    targets = len(ids) - 1
    windows = targets // T  # number of whole windows in the text
    wanted = targets if max_targets is None else max_targets
    n = min(windows, max(1, wanted // T))
    B = max(1, (max_batch or EVAL_CHARACTERS) // T)
    for i in range(0, n, B):
        starts = np.arange(i, min(i + B, n)) * windows // n * T
        rows = to_torch(ids[starts[:, None] + np.arange(T + 1)])  # (B, T + 1)
        yield rows[:, :-1], rows[:, 1:]
    if T * windows < targets and (wanted >= targets or not windows):
        row = to_torch(ids[T * windows :])[None]
        yield row[:, :-1], row[:, 1:]


def split_batches(batches: Iterable[Batch], B: int) -> Iterator[Batch]:
    """Split `batches` so that none has more than `B` windows."""
    for batch in batches:
        yield from zip(*(torch.split(part, B) for part in batch), strict=True)
