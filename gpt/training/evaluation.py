"""Validation loss: one number that anyone can recompute."""

from collections.abc import Callable

import torch

from gpt.model.transformer import GPT, cross_entropy
from gpt.text.batches import consecutive_windows
from gpt.text.vocabulary import Ids


class Stopped(Exception):
    """An evaluation was told to stop before its end."""


@torch.inference_mode()
def evaluate(model: GPT, ids: Ids, stopped: Callable[[], bool] = lambda: False) -> float:
    """Mean nats per character of `ids`, each but the first scored exactly once.

    The text is cut into consecutive windows of T characters (the last may be shorter), and each
    character is foretold from those before it in its window. Nothing random in it; in float32,
    whatever the model was trained in. Raises Stopped as soon as `stopped` says so.
    """
    device = next(model.parameters()).device
    model.eval()
    total = 0.0
    for x, y in consecutive_windows(ids, model.config.T):
        if stopped():
            raise Stopped
        total += cross_entropy(model(x.to(device)), y.to(device), reduction="sum").item()
    return total / (len(ids) - 1)
