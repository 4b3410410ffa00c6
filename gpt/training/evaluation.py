"""Validation loss: one number that anyone can recompute."""

import torch

from gpt.device import autocast
from gpt.model.transformer import GPT, cross_entropy
from gpt.text.batches import consecutive_windows
from gpt.text.vocabulary import Ids


@torch.inference_mode()
def evaluate(model: GPT, ids: Ids, precision: torch.dtype = torch.float32) -> float:
    """Mean nats per character of `ids`, each but the first scored exactly once.

    The text is cut into consecutive windows of T characters (the last may be shorter), and each
    character is foretold from those before it in its window. Nothing random in it.
    """
    device = next(model.parameters()).device
    model.eval()
    total = torch.zeros((), dtype=torch.float64)
    for x, y in consecutive_windows(ids, model.config.T):
        with autocast(device, precision):
            logits = model(x.to(device))
        total += cross_entropy(logits, y.to(device), reduction="sum").double().cpu()
    return float(total) / (len(ids) - 1)
