"""Measure how much of its train split a model repeats, compared with text that people wrote.

Two questions: how much of what the model writes occurs in the train split (arXiv:2111.09509), and
how well it continues prefixes of the train split compared with prefixes of text that it has not
seen (arXiv:2202.07646, 2410.19482).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpt.counts.mixture import Mixture
from gpt.evaluation.characters import spread_slices
from gpt.evaluation.scored_text import ScoredText
from gpt.evaluation.scores import score_text
from gpt.evaluation.substrings import Copies, find_copies
from gpt.model.ensemble import LanguageModel
from gpt.text.vocabulary import Ids, Vocabulary

SAMPLES = 16  # number of samples that are searched for copies
SEARCHED_CHARACTERS = 512  # length of each sample
PREFIX_IDS = 64  # longest prefix that the model continues
CONTINUATION_IDS = 32  # longest continuation that is compared
EXCERPTS = 128  # number of prefixes from each text
COPY_IDS = 32  # length of the substrings on which the verdict is based
SEEN_SHARE = 0.5  # share of copied substrings above which the evaluated text is not unseen
EXCESS = 0.05  # difference of two shares from which on the verdict is that the model memorised


@dataclass(frozen=True)
class Copying:
    """Copies of the train split in a text.

    Attributes:
        shares: for each length n, the fraction of the text's substrings of n ids that occur in the
            train split.
        longest: the number of ids of the longest substring that occurs in the train split.
        longest_text: this longest substring.
    """

    shares: dict[int, float]
    longest: int
    longest_text: str


@dataclass(frozen=True)
class Recall:
    """How well a model predicts the last ids of excerpts of a text, given the first ids.

    Attributes:
        excerpts: the number of excerpts. Each is a prefix and its continuation in the text.
        loss: nats per id of the continuations.
        exact: the fraction of continuations of which each id is the most likely one, so that
            greedy decoding would write them exactly.
        probability: the mean probability that sampling writes the continuation exactly.
    """

    excerpts: int
    loss: float
    exact: float
    probability: float


@dataclass(frozen=True)
class MemorisationReport:
    """How much a model repeats its train split, compared with unseen text that people wrote.

    Attributes:
        prefix: number of ids of each prefix in `train` and `unseen`.
        continuation: number of ids of each continuation.
        samples: copies of the train split in texts that the model wrote.
        human: copies of the train split in the evaluated text.
        train: how well the model continues prefixes of the train split.
        unseen: how well the model continues prefixes of the evaluated text.
        memorised: whether the share of copied substrings of COPY_IDS ids is larger in `samples`
            than in `human`, or that of exact continuations in `train` than in `unseen`, by at least
            EXCESS.
        verdict: the conclusion in words.
    """

    prefix: int
    continuation: int
    samples: Copying
    human: Copying
    train: Recall
    unseen: Recall
    memorised: bool
    verdict: str


def measure_memorisation(
    model: LanguageModel,
    text: ScoredText,
    train: Ids,
    samples: Sequence[Ids],
    mixture: Mixture | None = None,
) -> MemorisationReport:
    """Measure how much of the train split a model repeats, compared with text written by people.

    Measure how much of its samples is copied, and how often it continues prefixes of the train
    split word for word.

    Args:
        model: the network, which is set to evaluation mode.
        text: text that people wrote, which the model was not trained on.
        train: the ids of the train split.
        samples: the ids of texts that the model wrote, each with at least one id.
        mixture: n-gram counts to mix the network's predictions with.
    """
    vocabulary = text.vocabulary
    T = model.config.T
    prefix = min(PREFIX_IDS, (T + 1) // 2)
    continuation = min(CONTINUATION_IDS, T + 1 - prefix)
    length = max(map(len, samples))
    parts = spread_slices(len(text.ids), length * len(samples), length)
    copied = find_copies(train, samples)
    human = find_copies(train, [text.ids[part] for part in parts])
    recalled, unseen = (
        _recall(model, ids, vocabulary, prefix, continuation, mixture) for ids in (train, text.ids)
    )
    memorised, verdict = _verdict(copied, human, recalled, unseen, vocabulary.unit)
    return MemorisationReport(
        prefix,
        continuation,
        _copying(copied, vocabulary),
        _copying(human, vocabulary),
        recalled,
        unseen,
        memorised,
        verdict,
    )


def _copying(copies: Copies, vocabulary: Vocabulary) -> Copying:
    return Copying(copies.shares, len(copies.longest), vocabulary.decode(copies.longest))


def _recall(
    model: LanguageModel,
    ids: Ids,
    vocabulary: Vocabulary,
    prefix: int,
    continuation: int,
    mixture: Mixture | None,
) -> Recall:
    """Measure how well the model continues evenly spread excerpts of a text.

    Args:
        model: the network.
        ids: the text.
        vocabulary: the vocabulary of `ids`.
        prefix: the number of ids at the start of an excerpt, which the model is given.
        continuation: the number of ids after them, which the model must predict.
        mixture: n-gram counts to mix the network's predictions with.
    """
    length = min(prefix + continuation, len(ids))
    losses, exact = [], []
    for part in spread_slices(len(ids), EXCERPTS * length, length):
        if part.stop - part.start < length:
            continue
        (scores,) = score_text(model, ids[part], vocabulary, mixture=mixture)
        losses.append(float(scores.losses[-continuation:].sum()))
        exact.append(bool(scores.hits[-continuation:].all()))
    scored = min(continuation, length - 1)
    return Recall(
        excerpts=len(losses),
        loss=float(np.mean(losses)) / scored,
        exact=float(np.mean(exact)),
        probability=float(np.exp(-np.array(losses)).mean()),
    )


def _verdict(
    samples: Copies, human: Copies, train: Recall, unseen: Recall, unit: str
) -> tuple[bool, str]:
    """Return whether the model memorised its train split, and a sentence about it.

    Args:
        samples: the substrings of the model's samples that occur in the train split.
        human: the substrings of unseen text that occur in the train split.
        train: how well the model continues prefixes of the train split.
        unseen: how well the model continues prefixes of unseen text.
        unit: what an id stands for: `character` or `byte`.
    """
    copied, usual = (each.shares.get(COPY_IDS, 0.0) for each in (samples, human))
    copies, recalls = copied - usual >= EXCESS, train.exact - unseen.exact >= EXCESS
    numbers = (
        f"{100 * copied:.1f} % of the {COPY_IDS}-{unit} substrings of its samples occur in the "
        f"train split (of the evaluated text: {100 * usual:.1f} %), and its most likely "
        f"continuation of {100 * train.exact:.1f} % of prefixes of the train split is the true "
        f"one (of the evaluated text: {100 * unseen.exact:.1f} %)"
    )
    if copies and recalls:
        return True, f"the model copies and has memorised its train split: {numbers}"
    if copies:
        return True, f"the model's samples copy its train split: {numbers}"
    if recalls:
        return True, f"the model has memorised passages of its train split: {numbers}"
    if usual > SEEN_SHARE:
        return False, (
            f"the evaluated text is not unseen, so memorisation cannot be measured with "
            f"it: {numbers}"
        )
    return False, f"no sign that the model memorised its train split: {numbers}"
