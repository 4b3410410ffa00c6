"""Losses of simple predictors that are given the train split, to compare a model with."""

import lzma
import math
from collections.abc import Callable
from dataclasses import dataclass

from gpt.evaluation.baselines import ngram_loss
from gpt.evaluation.loss import Units
from gpt.text.vocabulary import Ids, Vocabulary

UNIGRAM, KNESER_NEY, XZ, PPMD = "unigram entropy", "Kneser-Ney", "xz -9", "PPMd"
KNESER_NEY_CONTEXT = 6  # ids of context; best of 2 to 8 for tinyshakespeare and wikitext2 together
PPMD_ORDER = 8  # characters of context; also the best of 4 to 16 for both texts together
PPMD_BYTES = 2**28  # memory of PPMd's model
MAX_TRAIN_IDS = 2**23  # last ids of the train split that a compressor reads before the text
MAX_TEXT_IDS = 2**20  # first ids of the text that a compressor compresses


@dataclass(frozen=True)
class ReferenceLoss:
    """The loss of a simple predictor on the text, in nats per character."""

    name: str
    loss: float


def reference_losses(
    train: Ids, text: Ids, vocabulary: Vocabulary, units: Units
) -> list[ReferenceLoss]:
    """Return the losses of n-gram models and of the installed compressors, the lowest last.

    A compressor's loss is the number of bits by which the compressed train split grows if the text
    is appended. At most MAX_TRAIN_IDS of the train split and MAX_TEXT_IDS of the text are used.

    Args:
        train: the ids of the train split.
        text: the ids of the text, in the same vocabulary.
        vocabulary: the vocabulary of both.
        units: the sizes of the text.
    """
    losses = {
        UNIGRAM: ngram_loss(train, text, vocabulary, 0),
        KNESER_NEY: ngram_loss(train, text, vocabulary, KNESER_NEY_CONTEXT),
    }
    before = utf8_of(train[-MAX_TRAIN_IDS:], vocabulary)
    part = text[:MAX_TEXT_IDS]
    both = before + utf8_of(part, vocabulary)
    for name, compressed_size in _compressors().items():
        added = compressed_size(both) - compressed_size(before)
        losses[name] = 8 * math.log(2) * added / len(part)
    found = [
        ReferenceLoss(name, units.per_character(loss))
        for name, loss in losses.items()
        if math.isfinite(loss)
    ]
    return sorted(found, key=lambda each: -each.loss)


def comparison(loss: float, references: list[ReferenceLoss]) -> str:
    """Return a sentence that compares `loss`, in nats per character, with the lowest other loss."""
    if not references:
        return ""
    best = min(references, key=lambda each: each.loss)
    difference = best.loss - loss
    word = "better" if difference >= 0 else "worse"
    return f"{abs(difference):.3f} nats per character {word} than {best.name}"


def utf8_of(ids: Ids, vocabulary: Vocabulary) -> bytes:
    """Return the UTF-8 of `ids`, with U+FFFD for the unknown id."""
    return ids.tobytes() if vocabulary.is_bytes else vocabulary.decode(ids).encode()


def _compressors() -> dict[str, Callable[[bytes], int]]:
    """Return, by name, functions that compress bytes and return the compressed size in bytes."""
    compressors: dict[str, Callable[[bytes], int]] = {
        XZ: lambda content: len(lzma.compress(content, preset=9))
    }
    try:
        from pyppmd import Ppmd7Encoder
    except ImportError:  # the extra `compressors` is not installed
        return compressors

    def ppmd(content: bytes) -> int:
        encoder = Ppmd7Encoder(PPMD_ORDER, PPMD_BYTES)
        return len(encoder.encode(content)) + len(encoder.flush())

    return compressors | {PPMD: ppmd}
