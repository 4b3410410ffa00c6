"""Score each id of a text: compute its loss, and the probabilities of the most likely ids.

Shapes use B windows of T ids, n scored ids, k likely ids and V distinct ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpt.evaluation.intervals import BlockSums
from gpt.evaluation.loss import EVAL_LOGITS, map_windows
from gpt.evaluation.scored_text import ScoredText
from gpt.model.ensemble import LanguageModel, members_of
from gpt.text.batches import Batch, scored_windows, split_batches
from gpt.text.vocabulary import Ids


@dataclass(frozen=True)
class Scores:
    """Predictions of n consecutive ids of a text."""

    start: int  # index in the text of the first of these ids
    losses: NDArray[np.float32]  # (n,) nats of each id
    contexts: NDArray[np.int64]  # (n,) number of ids from which each id was predicted
    likely: NDArray[np.int64]  # (n, k) the most likely ids, the most likely one first
    probabilities: NDArray[np.float32]  # (n, k) their probabilities
    hits: NDArray[np.bool_]  # (n,) whether the most likely id is the actual one


def score_text(model: LanguageModel, ids: Ids, k: int = 1) -> Iterator[Scores]:
    """Yield the scores of all `ids` but the first, in order.

    Each id is predicted from the ids before it in its window of `model.T` ids. The losses are those
    that `evaluate` averages. At least two ids are needed. `k` is reduced to V if it is larger.
    """
    device, V = next(model.parameters()).device, members_of(model)[0].head.out_features
    model.eval()

    @torch.inference_mode()
    def score(window: Batch) -> list[NDArray[Any]]:
        x, y = (part.to(device) for part in window)  # (B, T) each
        logs = model(x).float().log_softmax(-1)  # (B, T, V)
        top = logs.topk(min(k, V))  # (B, T, k)
        hits = top.indices[..., 0] == y
        contexts = torch.arange(1, x.shape[1] + 1).expand(y.shape)
        losses = -logs.gather(-1, y[..., None])[..., 0]
        parts = (losses, contexts, top.indices, top.values.exp(), hits)
        return [part.flatten(0, 1).numpy(force=True) for part in parts]

    start, T = 1, model.config.T
    windows = split_batches(scored_windows(ids, T), EVAL_LOGITS // V // T or 1)
    for parts in map_windows(score, windows, device):
        yield Scores(start, *parts)
        start += len(parts[0])


def block_losses(model: LanguageModel, text: ScoredText) -> tuple[BlockSums, float]:
    """Return the losses of `text` in blocks of characters, and its loss in nats per character.

    All bytes of a character are in one block, so models of bytes and of characters have the same
    blocks.
    """
    blocks, begun = BlockSums(text.units.characters), 0
    for scores in score_text(model, text.ids):
        ids = text.ids[scores.start : scores.start + len(scores.losses)]
        # number of characters that have begun by the end of each id
        characters = begun + np.cumsum(text.vocabulary.begins(ids))
        blocks.add(characters - 1, scores.losses)
        begun = int(characters[-1])
    return blocks, float(blocks.sums.sum()) / text.units.characters
