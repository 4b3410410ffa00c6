"""Losses of simple predictors, to compare a model with: n-gram models and compressors."""

import lzma
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpt.evaluation.characters import spread_slices
from gpt.evaluation.kneser_ney import KneserNey
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids, Vocabulary

MAX_PREDICTED_IDS = 2**22  # largest number of ids that n-gram models predict
PREDICTED_PART = 2**16  # number of ids in each part, if only parts of a large text are predicted
KNESER_NEY_CONTEXT = 6  # ids of context; best of 2 to 8 on average over tinyshakespeare, wikitext2
PPMD_ORDER = 8  # bytes of context; best of 4 to 16 on average over the same texts
PPMD_BYTES = 2**28  # memory of PPMd's model, in bytes
MAX_TRAIN_IDS = 2**23  # if train has more ids, compressors read only its end
MAX_TEXT_IDS = 2**20  # if the text has more ids, compressors read only its beginning


def trigram_bits_per_character(corpus: Corpus) -> float | None:
    """Return the bits per character of a trigram model on val; None if a split is too short."""
    loss = ngram_loss(corpus.train, corpus.val, corpus.vocabulary, 2)  # nats per id
    bits = loss * len(corpus.val) / max(corpus.val_characters, 1) / math.log(2)
    return None if math.isnan(bits) else bits


def ngram_loss(train: Ids, text: Ids, vocabulary: Vocabulary, order: int) -> float:
    """Return the loss on `text` (nats per id) of an n-gram model, with Kneser-Ney smoothing.

    `order` is the number of ids of context, or `longest_context(len(vocabulary))` if that is lower.
    The first `order` ids are not predicted. Return NaN if `train` or `text` has no other ids. If
    there are more than MAX_PREDICTED_IDS, only evenly spread parts are predicted.
    """
    model, total = KneserNey(train, len(vocabulary), order), 0.0
    order = model.order  # may be lower than requested
    if min(len(train), len(text)) <= order:
        return math.nan
    slices = spread_slices(len(text) - order, MAX_PREDICTED_IDS, PREDICTED_PART)
    for part in slices:
        ids = text[part.start : part.stop + order]
        total -= np.log(model.probabilities(ids)).sum()
    return float(total / sum(part.stop - part.start for part in slices))


@dataclass(frozen=True)
class ReferenceLoss:
    """The loss of a simple predictor on a text."""

    name: str
    loss: float  # nats per character


def reference_losses(
    train: Ids, text: Ids, vocabulary: Vocabulary, ids_per_character: float
) -> list[ReferenceLoss]:
    """Return losses of n-gram models and installed compressors in nats per character, lowest last.

    A compressor's loss is computed from the growth of the compressed train split if the text is
    appended. Compressors read at most MAX_TRAIN_IDS of train and MAX_TEXT_IDS of the text.
    `ids_per_character` converts nats per id of the text to nats per character.
    """
    losses = {
        "unigram entropy": ngram_loss(train, text, vocabulary, 0),
        "Kneser-Ney": ngram_loss(train, text, vocabulary, KNESER_NEY_CONTEXT),
    }
    before = vocabulary.utf8(train[-MAX_TRAIN_IDS:])
    part = text[:MAX_TEXT_IDS]
    both = before + vocabulary.utf8(part)
    for name, compress in (("xz -9", partial(lzma.compress, preset=9)), ("PPMd", _ppmd)):
        with suppress(ImportError):
            added = len(compress(both)) - len(compress(before))
            losses[name] = 8 * math.log(2) * added / len(part)
    references = [
        ReferenceLoss(name, loss * ids_per_character)
        for name, loss in losses.items()
        if math.isfinite(loss)  # NaN if a text is too short for an n-gram model
    ]
    return sorted(references, key=lambda each: -each.loss)


def _ppmd(content: bytes) -> bytes:
    """Return `content` compressed by PPMd; raise ImportError without the extra `compressors`."""
    from pyppmd import Ppmd7Encoder

    encoder = Ppmd7Encoder(PPMD_ORDER, PPMD_BYTES)
    compressed: bytes = encoder.encode(content) + encoder.flush()
    return compressed
