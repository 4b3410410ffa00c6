"""Validation loss: one number that anyone can recompute."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

from gpt.device import set_threads_here
from gpt.model.transformer import GPT, cross_entropy
from gpt.text.batches import consecutive_windows, spread_windows
from gpt.text.vocabulary import Ids


class Stopped(Exception):
    """An evaluation was asked to stop before its end."""


def evaluate(
    model: GPT,
    ids: Ids,
    *,
    characters: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int], object] = lambda characters: None,
) -> float:
    """Mean nats per character of `ids`, each but the first scored exactly once.

    The text is cut into consecutive windows of T characters (the last may be shorter), and each
    character is predicted from those before it in its window. Nothing random in it; in float32,
    whatever the model was trained in.

    With `characters`, about so many of them are scored: some of those windows, evenly spread.

    `should_stop` is asked before each window, from any thread; `on_progress` is called in this
    thread with the number of characters scored since its last call.

    On a CPU each thread scores windows of its own, as in training.

    Raises:
        Stopped: `should_stop` returned True before the last window.
    """
    device = next(model.parameters()).device
    model.eval()

    @torch.inference_mode()
    def score(window: tuple[Tensor, Tensor]) -> tuple[float, int]:
        if should_stop():
            raise Stopped
        x, y = (part.to(device) for part in window)
        return cross_entropy(model(x), y, reduction="sum").item(), y.numel()

    T, total, scored = model.config.T, 0.0, 0
    if characters is None or characters >= len(ids) - 1 or len(ids) <= T:
        windows = consecutive_windows(ids, T)
    else:
        windows = spread_windows(ids, T, characters)
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=set_threads_here, initargs=(1,))
    try:
        while some := list(islice(windows, 4 * threads)):
            for loss, count in (pool.map if device.type == "cpu" else map)(score, some):
                total, scored = total + loss, scored + count
                on_progress(count)
    except BaseException:  # a second Ctrl-C waits for nobody
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()  # no thread is still setting its number of threads
    return total / scored
