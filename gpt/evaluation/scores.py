"""Score each id of a text: compute its loss, and the probabilities of the most likely ids.

Shapes use B windows of W ids, n scored ids, k likely ids and V distinct ids.
"""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt.evaluation.intervals import BlockSums
from gpt.evaluation.loss import EVAL_LOGITS, map_windows, unknown_cost
from gpt.evaluation.scored_text import ScoredText
from gpt.model.ensemble import LanguageModel, members_of
from gpt.model.transformer import cross_entropy
from gpt.text.batches import Batch, scored_windows, sliding_windows, split_batches
from gpt.text.vocabulary import Ids, Vocabulary

ADAPTIVE_LEARNING_RATE = 1e-3  # learning rate of Adam
SQUARES_DECAY = 0.99  # decay of the running mean of squared gradients from one update to the next


@dataclass(frozen=True)
class Scores:
    """Predictions of n consecutive ids of a text."""

    start: int  # index in the text of the first of these ids
    losses: NDArray[np.float32]  # (n,) nats of each id
    contexts: NDArray[np.int64]  # (n,) number of ids from which each id was predicted
    likely: NDArray[np.int64]  # (n, k) the most likely ids, the most likely one first
    probabilities: NDArray[np.float32]  # (n, k) their probabilities
    hits: NDArray[np.bool_]  # (n,) whether the most likely id is the actual one


def score_text(
    model: LanguageModel,
    ids: Ids,
    vocabulary: Vocabulary,
    *,
    stride: int | None = None,
    k: int = 1,
) -> Iterator[Scores]:
    """Yield the scores of all `ids` but the first, in order.

    Each id is predicted from the ids before it in its window. By default, windows do not overlap:
    the losses are those that `evaluate_each` averages. With `stride`, windows overlap (see
    `sliding_windows`), so that ids are predicted from more context.

    Args:
        model: the model, which is set to evaluation mode.
        ids: the text, at least two ids.
        vocabulary: the vocabulary of `ids`. The probability of the unknown id is divided equally
            among the characters that share it.
        stride: number of ids from one window to the next; None without overlap.
        k: the number of likely ids to return, reduced to V if it is larger.
    """
    device, V = next(model.parameters()).device, members_of(model)[0].head.out_features
    model.eval()

    @torch.inference_mode()
    def score(window: Batch) -> list[NDArray[Any]]:
        x, y = (part.to(device) for part in window)  # (B, W), (B, n)
        logs = model(x)[:, -y.shape[1] :].float().log_softmax(-1)  # (B, n, V)
        if vocabulary.unknown_id is not None:
            logs[..., vocabulary.unknown_id] -= math.log(vocabulary.unknown)
        top = logs.topk(min(k, V))  # (B, n, k)
        hits = top.indices[..., 0] == y
        if vocabulary.unknown > 1:
            hits &= y != vocabulary.unknown_id  # this id stands for several characters
        contexts = torch.arange(x.shape[1] - y.shape[1], x.shape[1]).expand(y.shape) + 1
        losses = -logs.gather(-1, y[..., None])[..., 0]
        parts = (losses, contexts, top.indices, top.values.exp(), hits)
        return [part.flatten(0, 1).numpy(force=True) for part in parts]

    T = model.config.T
    B = EVAL_LOGITS // V // T or 1
    start = 1
    if stride is None:
        windows = split_batches(scored_windows(ids, T), B)
    else:
        windows = sliding_windows(ids, T, stride, B)
    for parts in map_windows(score, windows, device):
        yield Scores(start, *parts)
        start += len(parts[0])


def block_losses(model: LanguageModel, text: ScoredText) -> tuple[BlockSums, float]:
    """Score `text`, and sum the losses in blocks of characters.

    All bytes of a character are in one block, so models of bytes and of characters have the same
    blocks.

    Args:
        model: the model, which is set to evaluation mode.
        text: the text.

    Returns:
        The sums in nats, and the mean loss in nats per character.
    """
    blocks, begun = BlockSums(text.units.characters), 0
    for scores in score_text(model, text.ids, text.vocabulary):
        ids = text.ids[scores.start : scores.start + len(scores.losses)]
        # number of characters that have begun by the end of each id
        characters = begun + np.cumsum(text.vocabulary.begins(ids))
        blocks.add(characters - 1, scores.losses)
        begun = int(characters[-1])
    return blocks, float(blocks.sums.sum()) / text.units.characters


def adaptive_loss(
    model: LanguageModel,
    ids: Ids,
    vocabulary: Vocabulary,
    learning_rate: float = ADAPTIVE_LEARNING_RATE,
) -> float:
    """Return the mean loss in nats per id of a copy of `model` that learns while it is evaluated.

    This is dynamic evaluation (arXiv:1709.07432). Compare its loss with compressors, which also
    adapt to the text. The windows are those of `evaluate`. After a window is scored, Adam, without
    momentum, updates the copy with the gradient of the window's loss.

    Args:
        model: the model, which does not change.
        ids: at least two ids.
        vocabulary: the vocabulary of `ids`.
        learning_rate: the learning rate of Adam.
    """
    adapted = deepcopy(model).eval()
    device = next(adapted.parameters()).device
    optimizer = torch.optim.Adam(adapted.parameters(), learning_rate, (0.0, SQUARES_DECAY))
    total = 0.0
    for window in split_batches(scored_windows(ids, adapted.config.T), 1):
        x, y = (part.to(device) for part in window)
        logits: Tensor = adapted(x)
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(logits, y))
        optimizer.step()
        total += cross_entropy(logits.detach(), y, reduction="sum").item()
        total += unknown_cost(y, vocabulary)
    return total / (len(ids) - 1)
