"""Measure how much of its train split a model repeats, compared with text that people wrote.

Copying is the share of the model's samples that occurs in the train split (arXiv:2111.09509).
Recall measures how well the model continues prefixes of the train split. It is compared with recall
of text that the model was not trained on (arXiv:2202.07646, 2410.19482).

Substrings are compared by hashes of 64 bits. When 10,000 substrings of samples are searched in a
text of 10^9 ids, two different substrings have the same hash with a probability of 10^-6.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from gpt.errors import UsageError
from gpt.evaluation.characters import spread_slices
from gpt.evaluation.scored_text import ScoredText
from gpt.evaluation.scores import score_text
from gpt.model.ensemble import LanguageModel
from gpt.text.vocabulary import Ids, Vocabulary

SAMPLES = 16  # number of samples that are searched for copies
SEARCHED_CHARACTERS = 512  # length of each sample
PREFIX_IDS = 64  # longest prefix that the model continues
CONTINUATION_IDS = 32  # longest continuation that is compared
EXCERPTS = 128  # number of prefixes from each text
COPY_LENGTHS = (8, 16, 32, 64, 128)  # lengths of the substrings that are counted, in ids
COPY_IDS = 32  # length of the substrings on which the verdict is based
SEARCHED_IDS = 2**20  # ids of the train split that are searched at once, which limits memory
SEEN_SHARE = 0.5  # a text is not unseen if a larger share of its substrings occurs in train
EXCESS = 0.05  # smallest difference of two shares that counts as memorisation


@dataclass(frozen=True)
class Copying:
    """How much of a text also occurs in the train split."""

    shares: dict[int, float]  # by length n, the fraction of substrings of n ids that occur there
    longest: int  # number of ids of the longest substring that occurs there
    longest_text: str  # this substring


@dataclass(frozen=True)
class Recall:
    """How well a model continues prefixes of a text."""

    excerpts: int  # number of prefixes
    loss: float  # nats per id of the continuations
    exact: float  # fraction of continuations that greedy decoding would write exactly
    probability: float  # mean probability that sampling writes the continuation exactly


@dataclass(frozen=True)
class MemorisationReport:
    """How much a model repeats its train split, compared with unseen text that people wrote.

    `memorised` is True if `samples.shares[COPY_IDS]` exceeds that of `human`, or `train.exact`
    exceeds `unseen.exact`, by at least EXCESS.
    """

    prefix: int  # ids of each prefix in `train` and `unseen`
    continuation: int  # ids of each continuation
    samples: Copying  # in texts that the model wrote
    human: Copying  # in the evaluated text
    train: Recall  # on excerpts of the train split
    unseen: Recall  # on excerpts of the evaluated text
    memorised: bool
    verdict: str  # the conclusion in words


def measure_memorisation(
    model: LanguageModel,
    text: ScoredText,
    train: Ids,
    samples: Sequence[Ids],
) -> MemorisationReport:
    """Measure how much of its train split a model repeats, compared with text written by people.

    Args:
        model: the model, which is set to evaluation mode.
        text: a text that people wrote and that the model was not trained on.
        train: the ids of the train split.
        samples: the ids of texts that the model wrote, each with at least COPY_IDS ids.

    Raises:
        UsageError: `text` or `train` is too short.
    """
    vocabulary, T = text.vocabulary, model.config.T
    prefix = min(PREFIX_IDS, (T + 1) // 2)
    continuation = min(CONTINUATION_IDS, T + 1 - prefix)
    for name, ids in ((text.name, text.ids), ("the train split", train)):
        if len(ids) < (needed := max(prefix + continuation, COPY_IDS)):
            raise UsageError(
                f"--memorisation: expected at least {needed} {vocabulary.unit}s in {name}, got "
                f"{len(ids)}; leave out --memorisation, or use a longer text"
            )
    length = max(map(len, samples))
    parts = spread_slices(len(text.ids), length * len(samples), length)
    copied = _copying(train, samples, vocabulary)
    human = _copying(train, [text.ids[part] for part in parts], vocabulary)
    recalled, unseen = (
        _recall(model, ids, vocabulary, prefix, continuation) for ids in (train, text.ids)
    )
    verdict = _verdict(copied, human, recalled, unseen, vocabulary.unit)
    return MemorisationReport(prefix, continuation, copied, human, recalled, unseen, *verdict)


def _copying(train: Ids, pieces: Sequence[Ids], vocabulary: Vocabulary) -> Copying:
    shares, longest = find_copies(train, pieces)
    return Copying(shares, len(longest), vocabulary.decode(longest))


def _recall(
    model: LanguageModel,
    ids: Ids,
    vocabulary: Vocabulary,
    prefix: int,
    continuation: int,
) -> Recall:
    """Measure how well the model continues evenly spread parts of `ids`, given `prefix` ids."""
    length = prefix + continuation
    losses, exact = [], []
    for part in spread_slices(len(ids), EXCERPTS * length, length):
        if part.stop - part.start < length:
            continue
        (scores,) = score_text(model, ids[part], vocabulary)
        losses.append(float(scores.losses[-continuation:].sum()))
        exact.append(bool(scores.hits[-continuation:].all()))
    return Recall(
        excerpts=len(losses),
        loss=float(np.mean(losses)) / continuation,
        exact=float(np.mean(exact)),
        probability=float(np.exp(-np.array(losses)).mean()),
    )


def _verdict(
    samples: Copying, human: Copying, train: Recall, unseen: Recall, unit: str
) -> tuple[bool, str]:
    """Return whether the model memorised its train split, and a sentence with the reason."""
    copied, usual = samples.shares[COPY_IDS], human.shares[COPY_IDS]
    copies, recalls = copied - usual >= EXCESS, train.exact - unseen.exact >= EXCESS
    numbers = (
        f"{100 * copied:.1f} % of the {COPY_IDS}-{unit} substrings of its samples occur in the "
        f"train split (of the evaluated text: {100 * usual:.1f} %), and its most likely "
        f"continuation of {100 * train.exact:.1f} % of prefixes of the train split is the true "
        f"one (of the evaluated text: {100 * unseen.exact:.1f} %)"
    )
    if copies and recalls:
        claim = "the model copies and has memorised its train split"
    elif copies:
        claim = "the model's samples copy its train split"
    elif recalls:
        claim = "the model has memorised passages of its train split"
    elif usual > SEEN_SHARE:
        claim = "the evaluated text is not unseen, so memorisation cannot be measured with it"
    else:
        claim = "no sign that the model memorised its train split"
    return copies or recalls, f"{claim}: {numbers}"


def find_copies(text: Ids, pieces: Sequence[Ids]) -> tuple[dict[int, float], Ids]:
    """Find substrings of `pieces` in `text`. The pieces have a few thousand ids in total.

    Returns:
        For each n in COPY_LENGTHS up to the length of the longest piece, the fraction of substrings
        of n ids that occur in `text`; and the longest substring that occurs in `text`.
    """
    copied = cache(partial(_copied, text, pieces))
    lengths = range(1, max(map(len, pieces)) + 1)
    shares = {n: copied(n)[0] for n in COPY_LENGTHS if n in lengths}
    longest = bisect_left(lengths, True, key=lambda n: copied(n)[0] == 0)
    return shares, copied(longest)[1] if longest else text[:0]


def _copied(text: Ids, pieces: Sequence[Ids], n: int) -> tuple[float, Ids]:
    """Return the fraction of substrings of `n` ids that `text` contains, and one of these."""
    hashes = np.concatenate([_hashes(piece, n) for piece in pieces])
    distinct, numbers = np.unique(hashes, return_inverse=True)
    begins = np.zeros(2**20, bool)  # for each value of 20 bits, whether a hash begins with it
    begins[distinct >> np.uint64(44)] = True
    occurs, copy = np.zeros(len(distinct), bool), text[:0]
    for start in range(0, len(text), SEARCHED_IDS):
        part = text[start : start + SEARCHED_IDS + n - 1]
        hashes = _hashes(part, n)
        places = np.flatnonzero(begins[hashes >> np.uint64(44)])  # few are left to search
        nearest = distinct.searchsorted(hashes[places]).clip(max=len(distinct) - 1)
        is_equal = distinct[nearest] == hashes[places]
        occurs[nearest[is_equal]] = True
        for place in places[is_equal][:1]:
            copy = part[place : place + n]
    return float(occurs[numbers].mean()), copy


def _hashes(ids: Ids, n: int) -> NDArray[np.uint64]:
    """Return a hash of each substring of `n` ids, (len(ids) - n + 1,)."""
    factor, length = np.uint64(0x9E3779B97F4A7C15), 1
    hashes = (ids.astype(np.uint64) + np.uint64(1)) * factor
    while length < n:  # a longer substring is covered by two substrings of `length` ids
        shift = min(length, n - length)
        first, second = hashes[:-shift], hashes[shift:]
        hashes = (first ^ first >> np.uint64(29)) * factor + second
        length += shift
    return hashes
