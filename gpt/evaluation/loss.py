"""Validation loss: one number that anyone can recompute."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

from gpt.model.transformer import GPT, cross_entropy
from gpt.text.batches import consecutive_windows
from gpt.text.vocabulary import Ids


class Stopped(Exception):
    """An evaluation was told to stop before its end."""


def evaluate(model: GPT, ids: Ids, stopped: Callable[[], bool] = lambda: False) -> float:
    """Mean nats per character of `ids`, each but the first scored exactly once.

    The text is cut into consecutive windows of T characters (the last may be shorter), and each
    character is foretold from those before it in its window. Nothing random in it; in float32,
    whatever the model was trained in. Raises Stopped as soon as `stopped` says so.

    On a CPU each thread scores windows of its own, as in training.
    """
    device = next(model.parameters()).device
    model.eval()

    @torch.inference_mode()
    def score(window: tuple[Tensor, Tensor]) -> float:
        if stopped():
            raise Stopped
        x, y = (part.to(device) for part in window)
        return cross_entropy(model(x), y, reduction="sum").item()

    windows, total = consecutive_windows(ids, model.config.T), 0.0
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        while some := list(islice(windows, 4 * threads)):
            for loss in (pool.map if device.type == "cpu" else map)(score, some):
                total += loss
    finally:  # a second Ctrl-C waits for nobody
        pool.shutdown(wait=False, cancel_futures=True)
    return total / (len(ids) - 1)
