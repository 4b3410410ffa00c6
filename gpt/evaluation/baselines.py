"""Losses of simple predictors, to compare a model with: n-gram models and compressors.

N: number of ids in the longest context, V: number of distinct ids.
"""

import lzma
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpt.evaluation.characters import spread_slices
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids, Vocabulary

Integers = NDArray[np.int64]
Doubles = NDArray[np.float64]

MAX_KEY = 2**63 - 1
MAX_COUNTED_IDS = 2**25  # largest number of ids whose n-grams are counted; sorting takes 0.3 GB
MAX_PREDICTED_IDS = 2**22  # largest number of ids that n-gram models predict
PREDICTED_PART = 2**16  # number of ids in each part, if only parts of a large text are predicted
KNESER_NEY_CONTEXT = 6  # ids of context; best of 2 to 8 on average over tinyshakespeare, wikitext2
PPMD_ORDER = 8  # bytes of context; best of 4 to 16 on average over tinyshakespeare, wikitext2
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

    N, the number of ids of context, is `order`, or `longest_context(len(vocabulary))` if lower. The
    first N ids are not predicted. Return NaN if `train` or `text` has only N ids or fewer. If more
    than MAX_PREDICTED_IDS ids follow the first N, only evenly spread parts of them are predicted.
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

    A compressor's loss is computed from the compressed size of train and text, minus that of train.
    Compressors read at most MAX_TRAIN_IDS of train and MAX_TEXT_IDS of the text.
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
    """Compress `content` by PPMd; raise ImportError if the extra `compressors` is not installed."""
    from pyppmd import Ppmd7Encoder

    encoder = Ppmd7Encoder(PPMD_ORDER, PPMD_BYTES)
    compressed: bytes = encoder.encode(content) + encoder.flush()
    return compressed


class KneserNey:
    """N-gram model with modified Kneser-Ney smoothing.

    Chen and Goodman 1998, "An empirical study of smoothing techniques for language modeling"
    (TR-10-98), section 3. The count of an n-gram with the longest context is the number of its
    occurrences. With a shorter context, it is the number of distinct ids that precede the n-gram.
    Each count is reduced by a discount D, which differs for counts of 1, of 2, and of 3 or more.
    The freed probability is distributed like the prediction from the context without its first id:

        P_n(id | context) = (count - D) / total + freed / total * P_{n-1}(id | context[1:])

    Here n is the number of ids of context, total is the sum of the counts of all ids after the
    context, and freed is the sum of their discounts. P_{-1} is 1 / V for each id. After a context
    that was not counted, P_n is P_{n-1}.

    If `ids` has more than MAX_COUNTED_IDS ids, only evenly spread parts of it are counted. N, the
    number of ids in the longest context, is `order`, or `longest_context(V)` if that is lower.
    """

    def __init__(self, ids: Ids, V: int, order: int) -> None:
        self.V, self.order = V, min(order, longest_context(V))
        self._tables = [_Table(*counted) for counted in count_ngrams(ids, V, self.order)]

    def probabilities(self, ids: Ids) -> Doubles:
        """Return the probability of each id but the first N, given the N before it."""
        longest = _keys_of(ids, self.V, self.order)
        p = np.full(len(longest), 1 / self.V)
        for n, table in enumerate(self._tables):
            keys = longest % self.V ** (n + 1)
            contexts = keys // self.V
            start = table.keys.searchsorted(contexts * self.V)
            end = table.keys.searchsorted((contexts + 1) * self.V)
            place = table.keys.searchsorted(keys)
            discounted = np.where(table.keys[place] == keys, table.discounted[place], 0)
            total = table.totals[end] - table.totals[start]
            freed = table.freed[end] - table.freed[start]
            p = np.where(total > 0, (discounted + freed * p) / np.maximum(total, 1), p)
        return p


class _Table:
    """Counted n-grams with contexts of one length. A sentinel, MAX_KEY, follows the last key.

    `totals[i]` is the sum of the first i counts, and `freed[i]` that of the first i discounts.
    """

    def __init__(self, keys: Integers, counts: Integers) -> None:
        discounts = discounts_of(counts)
        self.keys = np.append(keys, MAX_KEY)
        self.discounted = np.append(counts - discounts, 0)
        self.totals = np.append(0, np.cumsum(counts))
        self.freed = np.append(0, np.cumsum(discounts))


def longest_context(V: int) -> int:
    """Return the largest number of context ids with which the key of an n-gram fits into 63 bits.

    >>> longest_context(65), longest_context(7000)
    (9, 3)
    """
    n = 0
    while V ** (n + 2) <= MAX_KEY and V > 1:
        n += 1
    return n


def count_ngrams(ids: Ids, V: int, order: int) -> list[tuple[Integers, Integers]]:
    """Count the n-grams of `ids` that have 0 to `order` ids of context.

    An n-gram is a context and the id after it. The key of an n-gram is a number in base V whose
    digits are its ids. N-grams with shorter contexts are derived from those with longer ones, so
    the text is read and sorted only once. Return, for each context length from 0 to `order`, the
    keys of the distinct n-grams in ascending order, and their counts as defined in KneserNey.
    """
    slices = spread_slices(max(len(ids) - order, 0), MAX_COUNTED_IDS)
    parts = [_keys_of(ids[part.start : part.stop + order], V, order) for part in slices]
    keys = np.concatenate([np.zeros(0, np.int64), *parts])
    tables = [np.unique(keys, return_counts=True)]
    for n in range(order, 0, -1):
        tables.insert(0, np.unique(tables[0][0] % V**n, return_counts=True))
    return tables


def _keys_of(ids: Ids, V: int, order: int) -> Integers:
    """Return, in text order, the keys of all n-grams of `ids` that have `order` ids of context."""
    keys = np.zeros(max(len(ids) - order, 0), np.int64)
    for i in range(order + 1):
        keys *= V
        keys += ids[i : len(keys) + i]
    return keys


def discounts_of(counts: Integers) -> Doubles:
    """Return the discount of each count; `counts` are those of all n-grams of one length."""
    discounts = np.array([0.5, 1.0, 1.5])  # defaults for counts of 1, of 2, and of 3 or more
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == times)) for times in (1, 2, 3, 4))
    if n1 and n2 and n3 and n4:
        y = n1 / (n1 + 2 * n2)
        estimates = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        discounts = np.clip(estimates, 0.1, [1.0, 1.9, 2.9])
    return np.array([0, *discounts]).take(counts, mode="clip")
