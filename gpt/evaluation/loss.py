"""Validation loss, computed without randomness.

Shapes use B windows of T ids, and V distinct ids.
"""

import math
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from gpt.device import set_threads_here
from gpt.distributed import SINGLE, Ranks
from gpt.evaluation.windows import (
    ACCELERATOR_EVAL_CHARACTERS,
    EVAL_CHARACTERS,
    scored_windows,
    split_batches,
)
from gpt.model.ensemble import LanguageModel, mean_prediction, members_of
from gpt.model.transformer import cross_entropy
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids, Vocabulary

# Largest number of logits of a forward pass in one CPU thread: 16 MB. Above 32 MB, malloc would
# request memory from the system in each forward pass, which is slow.
EVAL_LOGITS = 2**22
ACCELERATOR_EVAL_LOGITS = 2**24  # as EVAL_LOGITS, but on an accelerator: 64 MB

Window = TypeVar("Window")
Result = TypeVar("Result")


class Stopped(Exception):
    """An evaluation was stopped before its end."""


def evaluate(model: LanguageModel, ids: Ids) -> float:
    """Return the loss of `model` on `ids` in nats per id; see `evaluate_each`."""
    return evaluate_each(model, ids)[0]


def evaluate_each(
    model: LanguageModel,
    ids: Ids,
    *,
    characters: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    ranks: Ranks = SINGLE,
) -> list[float]:
    """Compute the mean losses on `ids` of a model and of its ensemble members.

    `ids` are cut into consecutive windows of T ids; the last may be shorter. Each id is predicted,
    in float32, from the ids before it in its window. On a CPU, each thread scores its own windows.
    On an accelerator, the losses are read only once, at the end.

    About `characters` ids are scored, in evenly spread windows; None for all. `should_stop` is
    called before each forward pass, in any thread; True stops the evaluation. The `ranks` divide
    the windows, so each rank has to call this function.

    Returns:
        Losses in nats per id: first that of `model`; then, for an ensemble, those of its members.

    Raises:
        Stopped: `should_stop` returned True on any rank.
    """
    device = next(model.parameters()).device
    members = members_of(model)
    model.eval()

    @torch.inference_mode()
    def score(window: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        if should_stop():
            raise Stopped
        x, y = (part.to(device) for part in window)  # (B, T)
        logits = [member(x) for member in members]  # each (B, T, V)
        if len(logits) > 1:
            logits.insert(0, mean_prediction(logits))
        losses = torch.stack([cross_entropy(each, y, reduction="sum") for each in logits])
        return losses, y.numel()

    T, losses_each = model.config.T, len(members) + (len(members) > 1)
    # loss sums (losses_each,) of each pass, after zeros for a rank that has no windows
    passes = [torch.zeros(losses_each, dtype=torch.float32, device=device)]
    scored, stopped, on_cpu = 0, False, device.type == "cpu"
    logits_at_once = EVAL_LOGITS if on_cpu else ACCELERATOR_EVAL_LOGITS
    B = logits_at_once // members[0].head.out_features // T or 1
    at_once = None if on_cpu else ACCELERATOR_EVAL_CHARACTERS
    windows = split_batches(scored_windows(ids, T, characters, at_once), B)
    own_windows = islice(windows, ranks.rank, None, ranks.size)
    try:
        for losses, count in map_windows(score, own_windows, device):
            passes.append(losses)
            scored += count
    except Stopped:
        stopped = True
    totals = sum(torch.stack(passes).cpu().double().numpy())  # (losses_each,)
    *sums, total_scored, stops = ranks.sum([*totals.tolist(), float(scored), float(stopped)])
    if stops:
        raise Stopped
    return [each / total_scored for each in sums]


def timed_ids(T: int, device: torch.device) -> int:
    """Return how many ids to score, in windows of `T` ids, to measure the speed of `evaluate`."""
    if device.type == "cpu":
        return max(EVAL_CHARACTERS, T) * torch.get_num_threads()
    return max(ACCELERATOR_EVAL_CHARACTERS, T)


def map_windows(
    function: Callable[[Window], Result], windows: Iterator[Window], device: torch.device
) -> Iterator[Result]:
    """Yield `function(window)` for each window, in order.

    `windows` are read lazily. On a CPU, several calls run at once, and each uses one thread.
    """
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=set_threads_here, initargs=(1,))
    try:
        while some := list(islice(windows, 4 * threads)):
            yield from (pool.map if device.type == "cpu" else map)(function, some)
    finally:
        # wait for threads that are still in `set_threads_here`, except after a second Ctrl-C
        wait = isinstance(sys.exception(), Exception | None)
        pool.shutdown(wait, cancel_futures=True)


@dataclass(frozen=True)
class Units:
    """Numbers of scored ids, and of the characters and UTF-8 bytes that the ids stand for."""

    ids: int
    characters: int
    bytes: int

    def per_character(self, loss: float) -> float:
        """Convert nats per id to nats per character."""
        return loss * (self.ids / self.characters)

    def bits_per_byte(self, loss: float) -> float:
        """Convert nats per id to bits per byte of UTF-8."""
        return loss * (self.ids / self.bytes) / math.log(2)


def scored_ids(text: str, vocabulary: Vocabulary) -> Ids:
    """Return the ids of `text` from its second character on, with one id of context before them.

    The context is the first character, or its last byte if ids are bytes.
    """
    return vocabulary.encode(text)[len(vocabulary.encode(text[:1])) - 1 :]


def scored_val(corpus: Corpus) -> Ids:
    """Return the ids of val to score, preceded by one id of context, as `scored_ids` does."""
    return corpus.val[corpus.val_first_bytes - 1 :] if corpus.vocabulary.is_bytes else corpus.val


def val_units(corpus: Corpus) -> Units:
    """Return the numbers of ids, characters and bytes that are scored in the val split."""
    ids = len(scored_val(corpus)) - 1
    return Units(ids, corpus.val_characters - 1, corpus.val_bytes - corpus.val_first_bytes)
