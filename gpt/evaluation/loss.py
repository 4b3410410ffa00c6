"""Validation loss: one number that anyone can recompute."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpt.device import set_threads_here
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.model.ensemble import LanguageModel, mean_prediction, members_of
from gpt.model.transformer import cross_entropy
from gpt.text.batches import scored_windows
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids, Vocabulary

EVAL_LOGITS = 2**22  # at a time, per thread: of 32 MB, malloc would take new memory each time


class Stopped(Exception):
    """An evaluation was asked to stop before its end."""


def evaluate(
    model: LanguageModel, ids: Ids, vocabulary: Vocabulary | None = None, **options: Any
) -> float:
    """Mean nats per id of `ids` (a character, or a byte), each but the first scored exactly once.

    Of an ensemble, that of its members' mean probabilities. For the options see `evaluate_each`.
    """
    return evaluate_each(model, ids, vocabulary, **options)[0]


def evaluate_each(
    model: LanguageModel,
    ids: Ids,
    vocabulary: Vocabulary | None = None,
    *,
    characters: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int], object] = lambda characters: None,
    ranks: Ranks = SINGLE,
) -> list[float]:
    """The loss of the model, see `evaluate`, and then of each member, if it is an ensemble.

    The text is cut into consecutive windows of T ids (the last may be shorter), and each id is
    predicted from those before it in its window. Nothing random in it; in float32, whatever the
    model was trained in.

    Characters that share the unknown id of the `vocabulary`, k of them, are equally likely once it
    is predicted: each costs -log(p / k).

    With `characters`, about so many of them are scored: some of those windows, evenly spread.

    `should_stop` is asked before each window, from any thread; `on_progress` is called in this
    thread with the number of characters scored since its last call.

    On a CPU each thread scores windows of its own, as in training, and so does each of the
    `ranks`, all of which are to call this.

    Raises:
        Stopped: `should_stop` returned True before the last window, on any rank.
    """
    device = next(model.parameters()).device
    model.eval()

    @torch.inference_mode()
    def score(window: tuple[Tensor, Tensor]) -> tuple[list[float], int]:
        if should_stop():
            raise Stopped
        x, y = (part.to(device) for part in window)
        shared = unknown_cost(y, vocabulary)
        logits = [member(x) for member in members_of(model)]
        if len(logits) > 1:
            logits.insert(0, mean_prediction(logits))
        losses = [cross_entropy(each, y, reduction="sum").item() + shared for each in logits]
        return losses, y.numel()

    T, K = model.config.T, len(members_of(model))
    totals, scored, stopped = np.zeros(K + (K > 1)), 0, False
    windows = scored_windows(ids, T, characters)
    windows = _divided(windows, EVAL_LOGITS // members_of(model)[0].head.out_features)
    mine = islice(windows, ranks.rank, None, ranks.size)
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=set_threads_here, initargs=(1,))
    try:
        while some := list(islice(mine, 4 * threads)):
            for losses, count in (pool.map if device.type == "cpu" else map)(score, some):
                totals, scored = totals + losses, scored + count
                on_progress(ranks.size * count)
    except Stopped:
        stopped = True
    except BaseException:  # a second Ctrl-C waits for nobody
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown(cancel_futures=True)  # no thread is still setting its number of threads
    numbers = [*totals.tolist(), float(scored), float(stopped)]
    *sums, characters_scored, stops = ranks.sum(numbers, patient=True)
    if stops:
        raise Stopped
    return [each / characters_scored for each in sums]


def _divided(
    windows: Iterator[tuple[Tensor, Tensor]], characters: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows x and y (B, T), with fewer of them at once where these are more characters."""
    for x, y in windows:
        at_once = max(1, characters // x.shape[1])
        yield from zip(torch.split(x, at_once), torch.split(y, at_once), strict=True)


def unknown_costs(ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """What each id costs beside its own prediction, in nats: log k if k characters share it."""
    shares = torch.eq(ids, -1 if vocabulary.unknown_id is None else vocabulary.unknown_id)
    return shares * math.log(max(vocabulary.unknown, 1))


def unknown_cost(ids: Tensor, vocabulary: Vocabulary | None) -> float:
    """The sum of `unknown_costs`."""
    if vocabulary is None or vocabulary.unknown_id is None:
        return 0.0
    return unknown_costs(ids, vocabulary).sum().item()


@dataclass(frozen=True)
class Units:
    """The ids that are scored, and the characters and bytes of UTF-8 that they stand for."""

    ids: int
    characters: int
    bytes: int

    def per_character(self, loss: float) -> float:
        """A loss in nats per id, in nats per character."""
        return loss * (self.ids / self.characters)

    def bits_per_byte(self, loss: float) -> float:
        """A loss in nats per id, in bits per byte of UTF-8."""
        return loss * (self.ids / self.bytes) / math.log(2)


def scored_ids(text: str, vocabulary: Vocabulary) -> Ids:
    """The ids of a text to evaluate on: all, but of bytes from the first character's last on."""
    return vocabulary.encode(text)[len(vocabulary.encode(text[:1])) - 1 :]


def units_of(text: str, vocabulary: Vocabulary) -> Units:
    """Those of a text of at least two characters."""
    ids = len(scored_ids(text, vocabulary)) - 1
    return Units(ids, len(text) - 1, len(text[1:].encode()))


def scored_val(corpus: Corpus) -> Ids:
    """The ids of the val split to evaluate on, see `scored_ids`."""
    return corpus.val[corpus.val_first_bytes - 1 :] if corpus.vocabulary.is_bytes else corpus.val


def val_units(corpus: Corpus) -> Units:
    """Those of the val split."""
    ids = len(scored_val(corpus)) - 1
    return Units(ids, corpus.val_characters - 1, corpus.val_bytes - corpus.val_first_bytes)
