"""Losses to compare a trained model with: n-gram models of the train split, gzip and xz."""

import gzip
import lzma
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpt.evaluation.characters import spread_slices
from gpt.evaluation.ngrams import KneserNey, ngram_loss, sampled_ngrams
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids

NGRAM_NAMES = {2: "bigram", 3: "trigram"}
MAX_COMPRESSED_BYTES = 2**21  # bytes of a text to compress, which takes xz a few seconds
COMPRESSED_PART = 2**16  # ids of each part of a larger text; gzip looks back less far
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip -9": lambda text: gzip.compress(text, 9, mtime=0),
    "xz": lzma.compress,
}


@dataclass(frozen=True)
class NgramBaseline:
    """Loss on the val split of an n-gram model of the train split; NaN for a shorter split.

    `loss` is in nats per id, as `val_loss`. `train_ids` n-grams were counted, `val_ids` scored.
    """

    model: str
    loss: float
    nats_per_character: float
    bits_per_character: float
    train_ids: int
    val_ids: int


@dataclass(frozen=True)
class Compression:
    """Bits per character of a sample of `characters` characters, by compressor."""

    bits_per_character: dict[str, float]
    characters: int


@dataclass(frozen=True)
class Baselines:
    """Bits per character of a trigram model and of xz; None if a split is too short."""

    trigram_bits_per_character: float | None
    xz_bits_per_character: float


def measure_baselines(corpus: Corpus) -> Baselines:
    """Measure the baselines of `corpus`, in about a second per MB and at most a few seconds."""
    trigram = ngram_baseline(corpus, 3)
    known = trigram.train_ids and trigram.val_ids
    sample = compression_sample(corpus.ids, (corpus.val_bytes, len(corpus.val)))
    if not corpus.vocabulary.is_bytes:
        content, characters = corpus.vocabulary.decode(sample).encode(), len(sample)
    else:  # in UTF-8, only the first byte of a character does not begin with the bits 10
        content, characters = sample.tobytes(), int(np.count_nonzero((sample & 0xC0) != 0x80))
    xz = 8 * len(lzma.compress(content)) / max(characters, 1)
    return Baselines(trigram.bits_per_character if known else None, xz)


def ngram_baseline(corpus: Corpus, n: int) -> NgramBaseline:
    """Count the n-grams of the train split of `corpus`, and score its val split."""
    V = len(corpus.vocabulary)
    train, val = (sampled_ngrams(split, n, V) for split in (corpus.train, corpus.val))
    loss = ngram_loss(KneserNey(train), val, corpus.vocabulary.unknown)
    nats = loss * len(corpus.val) / max(corpus.val_characters, 1)
    train_ids, val_ids = (int(split.counts.sum()) for split in (train, val))
    return NgramBaseline(NGRAM_NAMES[n], loss, nats, nats / math.log(2), train_ids, val_ids)


def compress(sample: str) -> Compression:
    """Compress `sample`, which is not empty, with each of COMPRESSORS."""
    content = sample.encode()
    bits = {name: 8 * len(run(content)) / len(sample) for name, run in COMPRESSORS.items()}
    return Compression(bits, len(sample))


def compression_sample(ids: Ids, bytes_per_id: tuple[int, int]) -> Ids:
    """Return evenly spread parts of `ids` of about MAX_COMPRESSED_BYTES, or all of them.

    `bytes_per_id` is a ratio: the UTF-8 bytes of some ids, and the number of these ids.
    """
    size, count = bytes_per_id
    most = max(1, MAX_COMPRESSED_BYTES * count // max(size, 1))
    return np.concatenate([ids[part] for part in spread_slices(len(ids), most, COMPRESSED_PART)])
