"""Measure losses to compare a trained model with: a trigram model's, and the compressor xz's."""

import lzma
import math
from dataclasses import dataclass

import numpy as np

from gpt.counts.kneser_ney import KneserNey
from gpt.counts.ngram_counts import count_ngrams
from gpt.evaluation.characters import spread_slices
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids, Vocabulary

MAX_COMPRESSED_IDS = 2**21  # largest number of ids to compress, which takes xz a few seconds
COMPRESSED_PART = 2**16  # number of ids in each compressed part of a larger text
TRIGRAM_CONTEXT = 2  # ids before the last id of a trigram
MAX_PREDICTED_IDS = 2**22  # largest number of ids that n-gram models predict


@dataclass(frozen=True)
class Baselines:
    """Bits per character of a trigram model (None if a split has fewer than 3 ids) and of `xz`."""

    trigram_bits_per_character: float | None
    xz_bits_per_character: float


def measure_baselines(corpus: Corpus) -> Baselines:
    """Measure the baselines of `corpus`. This takes at most a few seconds."""
    vocabulary = corpus.vocabulary
    loss = ngram_loss(corpus.train, corpus.val, vocabulary, TRIGRAM_CONTEXT)  # nats per id
    bits = loss * len(corpus.val) / max(corpus.val_characters, 1) / math.log(2)

    slices = spread_slices(len(corpus.ids), MAX_COMPRESSED_IDS, COMPRESSED_PART)
    sample = np.concatenate([corpus.ids[part] for part in slices])
    if not vocabulary.is_bytes:
        content, characters = vocabulary.decode(sample).encode(), len(sample)
    else:  # in UTF-8, all bytes of a character but the first have the leading bits 10
        content, characters = sample.tobytes(), int(np.count_nonzero((sample & 0xC0) != 0x80))
    xz = 8 * len(lzma.compress(content)) / max(characters, 1)
    return Baselines(None if math.isnan(bits) else bits, xz)


def ngram_loss(train: Ids, text: Ids, vocabulary: Vocabulary, order: int) -> float:
    """Return the loss on `text` of an n-gram model: Kneser-Ney smoothed counts of `train`.

    Args:
        train: the ids that are counted.
        text: the ids that are predicted, except for the first `order`. If there are more than
            MAX_PREDICTED_IDS, only evenly spread parts of the text are predicted.
        vocabulary: the vocabulary of both.
        order: the number of ids of context. A value above `longest_context` is reduced to it.

    Returns:
        Nats per id. If one of the texts has at most `order` ids, return NaN.
    """
    model, total = KneserNey(count_ngrams(train, len(vocabulary), order)), 0.0
    order = model.order  # may be lower
    if min(len(train), len(text)) <= order:
        return math.nan
    slices = spread_slices(len(text) - order, MAX_PREDICTED_IDS, COMPRESSED_PART)
    for part in slices:
        ids = text[part.start : part.stop + order]
        total -= np.log(model.probabilities(ids)).sum()
        if vocabulary.unknown_id is not None:  # the characters that share it are equally likely
            unknown = np.count_nonzero(ids[order:] == vocabulary.unknown_id)
            total += unknown * math.log(vocabulary.unknown)
    return float(total / sum(part.stop - part.start for part in slices))
