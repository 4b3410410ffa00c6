"""Losses to compare a trained model with: a trigram model of the train split, and xz."""

import lzma
import math
from dataclasses import dataclass

import numpy as np

from gpt.evaluation.characters import spread_slices
from gpt.evaluation.ngrams import KneserNey, ngram_loss, sampled_ngrams
from gpt.text.corpus import Corpus

MAX_COMPRESSED_IDS = 2**21  # largest number of ids to compress, which takes xz a few seconds
COMPRESSED_PART = 2**16  # number of ids in each compressed part of a larger text


@dataclass(frozen=True)
class Baselines:
    """Bits per character of a trigram model (None if a split has fewer than 3 ids) and of xz."""

    trigram_bits_per_character: float | None
    xz_bits_per_character: float


def measure_baselines(corpus: Corpus) -> Baselines:
    """Measure the baselines of `corpus`. This takes at most a few seconds."""
    V, vocabulary = len(corpus.vocabulary), corpus.vocabulary
    train, val = (sampled_ngrams(split, 3, V) for split in (corpus.train, corpus.val))
    loss = ngram_loss(KneserNey(train), val, vocabulary.unknown)  # nats per id
    bits = loss * len(corpus.val) / max(corpus.val_characters, 1) / math.log(2)
    is_known = len(train.ngrams) > 0 and len(val.ngrams) > 0

    slices = spread_slices(len(corpus.ids), MAX_COMPRESSED_IDS, COMPRESSED_PART)
    sample = np.concatenate([corpus.ids[part] for part in slices])
    if not vocabulary.is_bytes:
        content, characters = vocabulary.decode(sample).encode(), len(sample)
    else:  # in UTF-8, all bytes of a character but the first have the leading bits 10
        content, characters = sample.tobytes(), int(np.count_nonzero((sample & 0xC0) != 0x80))
    xz = 8 * len(lzma.compress(content)) / max(characters, 1)
    return Baselines(bits if is_known else None, xz)
