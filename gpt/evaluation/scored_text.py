"""A text to evaluate a model on, and the score of each of its ids.

Shapes use B windows of T ids, n scored ids, k likely ids and V distinct ids.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpt.errors import TextError
from gpt.evaluation.characters import spread_slices
from gpt.evaluation.intervals import BlockSums
from gpt.evaluation.loss import EVAL_LOGITS, Units, map_windows, scored_val, val_units
from gpt.evaluation.windows import scored_windows, split_batches
from gpt.model.ensemble import LanguageModel, members_of
from gpt.text.batches import Batch
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids, Vocabulary


@dataclass(frozen=True)
class ScoredText:
    """A text whose characters, except the first one, are scored.

    Characters outside the vocabulary are left out.
    """

    name: str
    ids: Ids  # the first id is only context
    vocabulary: Vocabulary
    units: Units  # numbers of scored ids, and of their characters and bytes
    outside: int  # number of characters outside the vocabulary
    train: Ids | None  # the run's train split; None if its text is missing

    def sha256(self) -> str:
        """Return a hash of the scored characters, the same whether ids are characters or bytes."""
        digest = hashlib.sha256()
        for part in spread_slices(len(self.ids) - 1):
            digest.update(self.vocabulary.utf8(self.ids[1:][part]))
        return digest.hexdigest()


def val_text(corpus: Corpus) -> ScoredText:
    """Return the val split of a run's text."""
    vocabulary, ids = corpus.vocabulary, scored_val(corpus)
    name = f"val split of {corpus.name}"
    return ScoredText(name, ids, vocabulary, val_units(corpus), 0, corpus.train)


def other_text(corpus: Corpus, vocabulary: Vocabulary, train: Ids | None) -> ScoredText:
    """Return the whole text of `corpus`, encoded by `vocabulary`, which is that of the model.

    The ids of `corpus` must be bytes if those of `vocabulary` are; otherwise, characters. `train`
    are the ids of the model's train split; None if its text is missing.

    Raises:
        TextError: fewer than two characters of the text are in the vocabulary.
    """
    outside = 0
    if vocabulary.is_bytes:
        # keep only the last byte of the first character, as context for the second character
        last = int(np.argmax([*vocabulary.begins(corpus.ids[1:5]), True]))
        ids, characters = corpus.ids[last:], corpus.characters - 1
        size = len(ids) - 1
    else:
        ids, size = _translated(corpus, vocabulary)
        characters, outside = len(ids) - 1, len(corpus.ids) - len(ids)
    if characters < 1:
        raise TextError(
            f"{corpus.name}: expected at least 2 characters of the model's vocabulary, got "
            f"{characters + 1}; evaluate another text"
        )
    units = Units(len(ids) - 1, characters, size)
    return ScoredText(corpus.name, ids, vocabulary, units, outside, train)


def _translated(corpus: Corpus, vocabulary: Vocabulary) -> tuple[Ids, int]:
    """Encode those characters of `corpus` that are in `vocabulary`, into a temporary file.

    Return the ids, and the number of UTF-8 bytes of all encoded characters except the first.
    """
    outside = vocabulary.outside(corpus.vocabulary.characters)
    left_out = dict.fromkeys(map(ord, outside))
    size, first = 0, ""
    with tempfile.TemporaryFile() as file:
        for part in spread_slices(len(corpus.ids)):
            text = corpus.vocabulary.decode(corpus.ids[part]).translate(left_out)
            first = first or text[:1]
            size += len(text.encode())
            file.write(vocabulary.encode(text).data)
        file.flush()
        if not size:
            return vocabulary.encode(""), 0
        return np.memmap(file, vocabulary.dtype, mode="r"), size - len(first.encode())


@dataclass(frozen=True)
class Scores:
    """Predictions of n consecutive ids of a text."""

    start: int  # number of ids of the text before the first scored id
    losses: NDArray[np.float32]  # (n,) loss of each id in nats
    contexts: NDArray[np.int64]  # (n,) number of ids from which each id was predicted
    likely: NDArray[np.int64]  # (n, k) the most likely ids, the most likely one first
    probabilities: NDArray[np.float32]  # (n, k) probabilities of `likely`
    hits: NDArray[np.bool_]  # (n,) whether the most likely id is the actual id


def score_text(model: LanguageModel, ids: Ids, k: int = 1) -> Iterator[Scores]:
    """Yield Scores of consecutive parts of `ids`, which cover all ids but the first.

    Each id is predicted from the ids before it in its window of `model.config.T` ids. `evaluate`
    averages the same losses. At least two ids are needed. `Scores.likely` is (n, min(k, V)).
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
