"""What a trigram model and xz reach on a text, to compare a trained model with.

The rules are those of `gpt data`. The trigram model counts the train split and is scored on the val
split. xz compresses the whole text, or, if that is longer, SAMPLE_BYTES of it, evenly spread.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gpt.evaluation.compression import COMPRESSED_PART, COMPRESSORS, SAMPLE_BYTES
from gpt.evaluation.ngrams import KneserNey, ngram_loss, sampled_ngrams
from gpt.evaluation.spread import spread_slices
from gpt.text.corpus import Corpus


@dataclass(frozen=True)
class Baselines:
    """Bits per character; None if a split is too short for a trigram."""

    trigram_bits_per_character: float | None
    xz_bits_per_character: float


def measure_baselines(corpus: Corpus) -> Baselines:
    """Return the baselines of a text. They take about a second for each MB, at most two or so."""
    with ThreadPoolExecutor(1) as pool:
        xz = pool.submit(_xz_bits, corpus)  # which does not hold Python's lock
        loss = trigram_loss(corpus)
        bits = loss * len(corpus.val) / max(corpus.val_characters, 1) / math.log(2)
        return Baselines(None if math.isnan(bits) else bits, xz.result())


def trigram_loss(corpus: Corpus) -> float:
    """Return nats per id of val by a trigram model of train; NaN if a split is too short."""
    V = len(corpus.vocabulary)
    train, val = (sampled_ngrams(split, 3, V) for split in (corpus.train, corpus.val))
    if not train.counts.size:
        return math.nan
    return ngram_loss(KneserNey(train), val, corpus.vocabulary.unknown)


def _xz_bits(corpus: Corpus) -> float:
    ids, vocabulary = corpus.ids, corpus.vocabulary
    most = max(1, SAMPLE_BYTES * len(corpus.val) // max(corpus.val_bytes, 1))
    parts = spread_slices(len(ids), most, COMPRESSED_PART)
    sample = np.concatenate([ids[part] for part in parts])
    if vocabulary.is_bytes:
        content, characters = sample.tobytes(), int(np.count_nonzero((sample & 0xC0) != 0x80))
    else:
        content, characters = vocabulary.decode(sample).encode(), len(sample)
    return 8 * len(COMPRESSORS["xz"](content)) / max(characters, 1)
