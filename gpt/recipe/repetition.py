"""Whether a text repeats itself, as code does: what a model gains by looking up the last time."""

import torch
from torch import Tensor

from gpt.model.transformer import GPT, cross_entropy
from gpt.text.batches import scored_windows
from gpt.text.vocabulary import Ids

CONTEXT = 4  # ids: what followed as many the last time is repeated
SCORED = 60_000  # ids at most, evenly spread
MUCH = 0.2  # of all ids: prose has 0.00 to 0.16, documentation and code 0.28 to 0.38


def repeats_much(ids: Ids, T: int) -> bool:
    """Whether in windows of T so many ids follow CONTEXT others as they did the last time there."""
    return repeated_part(ids, T) > MUCH


def repeated_part(ids: Ids, T: int) -> float:
    """Of the ids scored, those that follow CONTEXT others as they did the last time, in a window.

    It is what an induction head gets right (arXiv:2209.11895, "prefix matching").
    """
    found = [repeated(x, y) for x, y in scored_windows(ids, T, SCORED)]
    return sum(int(each.sum()) for each in found) / sum(each.numel() for each in found)


@torch.inference_mode()
def repeated_loss(model: GPT, ids: Ids) -> float:
    """The loss of the ids that `repeated_part` counts, over all ids scored: in nats per id."""
    device = next(model.parameters()).device
    total, scored = 0.0, 0
    model.eval()
    for x, y in scored_windows(ids, model.config.T, SCORED):
        found = repeated(x, y)
        hidden = model.hidden(x.to(device))[found.to(device)]  # (n, C)
        logits, targets = model.head(hidden), y[found].to(device)  # (n, V), (n,)
        total += cross_entropy(logits[None], targets[None], reduction="sum").item()
        scored += y.numel()
    return total / scored


def repeated(x: Tensor, y: Tensor) -> Tensor:
    """(B, T) ids and those that follow -> (B, T) bool: which do so as the last time."""
    found = torch.zeros(y.shape, dtype=torch.bool)
    for b, (before, after) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        followed: dict[tuple[int, ...], int] = {}
        for t in range(CONTEXT - 1, len(before)):
            context = tuple(before[t + 1 - CONTEXT : t + 1])
            found[b, t] = followed.get(context) == after[t]
            followed[context] = after[t]
    return found
