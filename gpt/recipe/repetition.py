"""Measure how much of a text repeats earlier text. A model can learn to copy such text.

An id is repeated if the `context` ids before it occurred earlier in the window, and this id
followed them the last time. An induction head predicts such ids
(arXiv:2209.11895, "prefix matching").
"""

import math

import torch

from gpt.text.batches import scored_windows
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids

CONTEXT_CHARACTERS = 4  # length of the context that must occur again
CHANCE_WINDOWS = 64  # a context must be so long that it recurs by chance in 1 of 64 windows
MIN_ENTROPY = 1e-3  # nats; avoids a division by 0 for a text of one character
MAX_SCORED_IDS = 60_000  # largest number of val ids to score, spread evenly
# Fraction of repeated ids above which a text repeats itself. Prose has 0.00 to 0.16, documentation
# and code have 0.28 to 0.38.
MUCH_REPEATED = 0.2


def repeats_much(corpus: Corpus, T: int) -> bool:
    """Return whether the fraction of repeated val ids, in windows of `T`, exceeds MUCH_REPEATED."""
    return repeated_part(corpus.val, T, context_of(corpus, T)) > MUCH_REPEATED


def context_of(corpus: Corpus, T: int) -> int:
    """Return the number of ids to use as `context` for the text; see the top of this file.

    In a window of `T` ids, n given ids occur again by chance with a probability of about
    T / exp(n H), where H is the entropy of an id in nats. The result is the length of
    CONTEXT_CHARACTERS characters, or the smallest n for which this probability is at most
    1 / CHANCE_WINDOWS, if that is larger. It is at most T / 2.
    """
    per_character = len(corpus.val) / corpus.val_characters
    ids = torch.cat([y.flatten() for _, y in scored_windows(corpus.val, T, MAX_SCORED_IDS)])
    p = ids.bincount().double() / len(ids)  # (V,)
    entropy = float(torch.special.entr(p).sum())
    min_length = math.log(CHANCE_WINDOWS * T) / max(entropy, MIN_ENTROPY)
    max_length = max(1, T // 2)
    return min(max(round(CONTEXT_CHARACTERS * per_character), math.ceil(min_length)), max_length)


def repeated_part(ids: Ids, T: int, context: int) -> float:
    """Return the fraction of repeated `ids` in windows of `T` ids; see the top of this file."""
    found = total = 0
    for x, y in scored_windows(ids, T, MAX_SCORED_IDS):
        total += y.numel()
        for inputs, targets in zip(x.tolist(), y.tolist(), strict=True):
            followed: dict[tuple[int, ...], int] = {}
            for t in range(context - 1, len(inputs)):
                last = tuple(inputs[t + 1 - context : t + 1])
                found += followed.get(last) == targets[t]
                followed[last] = targets[t]
    return found / total
