"""Score each character of a text: its loss, and the probability of the most likely character.

Shapes use B windows of W ids, n scored ids, k likely ids and V distinct ids.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt.counts.mixture import Mixture
from gpt.evaluation.loss import EVAL_LOGITS, map_windows
from gpt.model.ensemble import LanguageModel, mean_prediction, members_of
from gpt.model.transformer import GPT
from gpt.model.windows import mixed, segmented
from gpt.text.batches import Batch, consecutive_windows, sliding_windows
from gpt.text.vocabulary import Ids, Vocabulary

COUNTED_AGAIN = 8  # number of windows that overlap in which an id is counted, with `stride`


@dataclass(frozen=True)
class Scores:
    """Predictions of n consecutive ids of a text.

    Attributes:
        start: the index in the text of the first of these ids.
        losses: (n,) nats of each id.
        contexts: (n,) number of ids from which each id was predicted.
        likely: (n, k) the most likely ids, the most likely one first.
        probabilities: (n, k) their probabilities.
        hits: (n,) whether the most likely id is the actual one.
    """

    start: int
    losses: NDArray[np.float32]
    contexts: NDArray[np.int64]
    likely: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    hits: NDArray[np.bool_]


def score_text(
    model: LanguageModel,
    ids: Ids,
    vocabulary: Vocabulary,
    *,
    mixture: Mixture | None = None,
    stride: int | None = None,
    k: int = 1,
) -> Iterator[Scores]:
    """Yield the scores of all `ids` but the first, in order.

    Each id is predicted from the ids before it in its window. By default, windows do not overlap:
    the losses are those that `evaluate_each` averages. With `stride`, inputs of the network overlap
    (see `sliding_windows`), so that ids are predicted from more context. The windows of counts
    overlap, too (see `window_stride`).

    Args:
        model: the network, which is set to evaluation mode.
        ids: the text, at least two ids.
        vocabulary: the vocabulary of `ids`. If k characters share the unknown id, and it has
            probability p, each of them has probability p / k.
        mixture: counts to mix the network's predictions with.
        stride: the number of ids by which the input of the network moves, at most its context; None
            for windows that do not overlap.
        k: the number of likely ids to return, which is reduced to V if it is larger.
    """
    device, members = next(model.parameters()).device, members_of(model)
    V = members[0].head.out_features
    model.eval()

    @torch.inference_mode()
    def score(window: Batch) -> list[NDArray[Any]]:
        x, y = (part.to(device) for part in window)  # (B, W), (B, n)
        logits = mean_prediction([last_logits(each, x, y.shape[1], stride) for each in members])
        if mixture is not None:
            logits = mixed(mixture, x, logits)
        logs = logits.float().log_softmax(-1)  # (B, n, V)
        if vocabulary.unknown_id is not None:
            logs[..., vocabulary.unknown_id] -= math.log(vocabulary.unknown)
        top = logs.topk(min(k, V))  # (B, n, k)
        hits = top.indices[..., 0] == y
        if vocabulary.unknown > 1:
            hits &= y != vocabulary.unknown_id  # does not say which of the characters it is
        contexts = torch.arange(x.shape[1] - y.shape[1], x.shape[1]).expand(y.shape) + 1
        losses = -logs.gather(-1, y[..., None])[..., 0]
        parts = (losses, contexts, top.indices, top.values.exp(), hits)
        return [part.flatten(0, 1).numpy(force=True) for part in parts]

    T = model.config.T if mixture is None else mixture.T
    B = EVAL_LOGITS // V // T or 1
    start = 1
    for parts in map_windows(score, _windows(ids, T, window_stride(T, stride, mixture), B), device):
        yield Scores(start, *parts)
        start += len(parts[0])


def _windows(ids: Ids, T: int, stride: int | None, B: int) -> Iterator[Batch]:
    """Yield batches of at most `B` windows of `ids`, as pairs of inputs and targets.

    Inputs overlap if `stride` is not None; otherwise consecutive windows of `T` ids are returned.
    """
    if stride is not None:
        yield from sliding_windows(ids, T, stride, B)
        return
    for batch in consecutive_windows(ids, T):
        yield from zip(*(torch.split(part, B) for part in batch), strict=True)


def last_logits(member: GPT, x: Tensor, n: int, stride: int | None) -> Tensor:
    """Return the logits (B, n, V) of the network `member` after the last `n` ids of windows `x`.

    Args:
        member: the network.
        x: (B, W) windows, which may exceed the network's context.
        n: the number of ids, W if `stride` is None.
        stride: ids from one input of the network to the next, which overlap. With None, `x` is
            predicted in segments (see `segmented`).
    """
    if stride is None:
        return segmented(member, x)
    ends = [*range(x.shape[1] - n + stride, x.shape[1], stride), x.shape[1]]
    starts = [x.shape[1] - n, *ends]
    parts = [
        member.head(member.hidden(x[:, max(0, end - member.config.T) : end])[:, start - end :])
        for start, end in pairwise(starts)
    ]
    return torch.cat(parts, 1)


def window_stride(T: int, stride: int | None, mixture: Mixture | None) -> int | None:
    """Return the number of ids from one window of T ids to the next, in `score_text`.

    Without n-gram counts (`mixture`), this is `stride`. Counts see far longer windows than the
    network, and counting anew every `stride` ids would take too long. Therefore, a window of counts
    begins every T / COUNTED_AGAIN ids, rounded down to a multiple of `stride`.
    """
    if stride is None or mixture is None:
        return stride
    return max(1, T // COUNTED_AGAIN // stride) * stride
