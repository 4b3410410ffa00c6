"""Evaluate a model on a text; report its loss, its calibration and losses of other predictors.

The loss is also broken down by a property of the characters, such as their script.
"""

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpt.errors import UsageError, arguments, counted
from gpt.evaluation.baselines import ReferenceLoss, reference_losses
from gpt.evaluation.intervals import BlockSums, Interval, mean_interval
from gpt.evaluation.memorisation import MemorisationReport
from gpt.evaluation.scored_text import ScoredText, Scores, score_text
from gpt.model.ensemble import LanguageModel
from gpt.terminal import phase
from gpt.text.vocabulary import REPLACEMENT, Ids, Vocabulary, code_points

BINS = 10  # number of equally wide ranges of probability in the reliability diagram
ALTERNATIVES = 5  # number of likely ids that a Surprise stores at each position
MAX_SURPRISES = 2**20  # if the text has more ids, a Surprise stores only its beginning
MAX_MILLINATS = 2**16 - 1  # largest loss that a Surprise stores, in thousandths of a nat
MARGIN = 3  # ids read before and after the scored ones, to see all bytes of a character
OTHER_KINDS = {"N": "digit", "P": "punctuation", "S": "symbol", "Z": "space", "C": "control"}

Values = NDArray[np.int64]
Sums = NDArray[np.float64]  # (4,): sums of characters, ids, nats and hits


@dataclass(frozen=True)
class Group:
    """Characters with one value of a property, such as the script `Latin`, and their mean loss."""

    value: str
    characters: int
    loss: float  # nats per character
    accuracy: float  # fraction of ids to which the model gave the highest probability


class Breakdown:
    """Sums of the losses on a text for each value of `property_`, a key of LABELS."""

    def __init__(self, property_: str, ids: Ids, vocabulary: Vocabulary) -> None:
        self.property_, self.ids, self.vocabulary = property_, ids, vocabulary
        self._sums: dict[int, Sums] = {}

    def add(self, scores: Scores) -> None:
        """Add the losses of the ids in `scores` to the sums."""
        start, n = scores.start, len(scores.losses)
        before = min(start, MARGIN)
        points, begins = characters_of(
            self.ids[start - before : start + n + MARGIN], self.vocabulary
        )
        scored = slice(before, before + n)
        values = points[scored]
        if self.property_ == "position":
            values = np.ceil(np.log2(scores.contexts)).astype(np.int64)
        found, places = np.unique(values, return_inverse=True)
        columns = (begins[scored], np.ones(n), scores.losses, scores.hits)
        sums = [np.bincount(places, column) for column in columns]
        for value, row in zip(found.tolist(), np.stack(sums, 1), strict=True):
            self._sums[value] = self._sums.get(value, 0) + row

    def groups(self) -> list[Group]:
        """Return a Group for each label, in ascending order of the label's smallest value.

        Several values can have one label: `Latin` is the label of the code points of Latin letters.
        """
        merged: dict[str, Sums] = {}
        for value in sorted(self._sums):
            label = LABELS[self.property_](value)
            merged[label] = merged.get(label, 0) + self._sums[value]
        return [
            Group(label, int(characters), nats / max(characters, 1), hits / ids)
            for label, (characters, ids, nats, hits) in merged.items()
        ]


def characters_of(ids: Ids, vocabulary: Vocabulary) -> tuple[Values, NDArray[np.bool_]]:
    """Return two arrays: the code point of each id, and True for ids that begin a character.

    If ids are bytes, each byte of a character has the code point of that character. Bytes that are
    not UTF-8 have the code point U+FFFD.
    """
    begins = vocabulary.begins(ids)
    if not vocabulary.is_bytes:
        return code_points(vocabulary.decode(ids)).astype(np.int64), begins
    begins[:1] = True  # the first id may lie within a character
    content, ends = ids.tobytes(), [*np.flatnonzero(begins).tolist(), len(ids)]
    points = [ord(content[a:b].decode(errors="replace")[0]) for a, b in pairwise(ends)]
    return np.array(points)[np.cumsum(begins) - 1], begins


@cache
def script_of(point: int) -> str:
    """Return the script of a letter, such as `Latin`; for other characters, a kind such as `digit`.

    The script is the first word of the letter's Unicode name.
    """
    character = chr(point)
    kind = unicodedata.category(character)[0]
    if character == REPLACEMENT:
        return "unknown"
    if kind in OTHER_KINDS:
        return "space" if character.isspace() else OTHER_KINDS[kind]
    return unicodedata.name(character, "unnamed").split()[0].capitalize()


def _position_label(exponent: int) -> str:
    low, high = 2**exponent // 2 + 1, 2**exponent
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


LABELS: dict[str, Callable[[int], str]] = {
    "position": _position_label,
    "script": script_of,
    "character": chr,
}
"""Properties by which a loss can be broken down, and for each a function that names a value."""


@dataclass(frozen=True)
class CalibrationBin:
    """Predictions whose most likely id has a probability in one of BINS ranges."""

    ids: int  # number of predictions
    probability: float  # mean probability of the most likely id
    accuracy: float  # fraction of predictions whose most likely id is right


class Calibration:
    """Accuracy of the most likely id, compared with its probability (arXiv:1706.04599)."""

    def __init__(self) -> None:
        self.sums = np.zeros((BINS, 3))  # columns: ids, probability, hits

    def add(self, scores: Scores) -> None:
        """Add the predictions in `scores` to the statistics."""
        p = scores.probabilities[:, 0]
        bins = np.minimum((p * BINS).astype(np.int64), BINS - 1)
        columns = np.stack([np.ones(len(p)), p, scores.hits])
        self.sums += np.stack([np.bincount(bins, column, BINS) for column in columns], 1)

    def bins(self) -> list[CalibrationBin]:
        """Return the ranges of probability that contain a prediction, in ascending order."""
        return [
            CalibrationBin(int(ids), p / ids, hits / ids)
            for ids, p, hits in self.sums.tolist()
            if ids
        ]


class Surprise:
    """Losses of the first MAX_SURPRISES ids of a text, and the likeliest ids at each position.

    Losses and probabilities are stored as small integers; they are 0 for the first, unscored id.
    """

    root_of_1 = 255  # the integer that stores the square root of probability 1

    def __init__(self, ids: Ids, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.ids = vocabulary, ids[:MAX_SURPRISES]
        n, k = len(self.ids), min(ALTERNATIVES, len(vocabulary))
        self.millinats = np.zeros(n, np.uint16)  # loss of each id in thousandths of a nat
        self.likely = np.zeros((n, k), vocabulary.dtype)  # the most likely ids
        self.roots = np.zeros((n, k), np.uint8)  # `root_of_1` * sqrt(probability)

    def add(self, scores: Scores) -> None:
        """Store the losses and likely ids of the consecutive ids in `scores`."""
        part = slice(scores.start, scores.start + len(scores.losses))
        n = len(self.ids[part])  # the text may be longer than `self.ids`
        self.millinats[part] = np.minimum(1000 * scores.losses[:n], MAX_MILLINATS).round()
        self.likely[part] = scores.likely[:n]
        self.roots[part] = (self.root_of_1 * np.sqrt(scores.probabilities[:n])).round()

    def curve(self, points: int) -> list[float]:
        """Divide the text into at most `points` parts; return their mean losses in nats per id."""
        losses = self.millinats[1:]
        parts = np.array_split(losses, min(points, len(losses)))
        return [float(part.mean()) / 1000 for part in parts]


@dataclass(frozen=True)
class EvaluationReport:
    """The result of an evaluation. Losses are means over all characters but the first.

    `memorisation` and `surprise` are None if they were not requested.
    """

    text: str  # name of the text
    unit: str  # what an id stands for: `character` or `byte`
    ids: int  # size of the scored text in ids
    characters: int
    bytes: int
    outside: int  # number of characters outside the model's vocabulary
    loss: float  # nats per id; on the val split, this is `val_loss`
    loss_per_character: float  # nats
    interval: Interval | None  # confidence interval of `loss_per_character`; None for a short text
    bits_per_character: float
    bits_per_byte: float  # bits per byte of UTF-8
    accuracy: float  # fraction of ids to which the model gave the highest probability
    calibration_error: float  # mean |probability - accuracy| of the bins, weighted by `ids`
    calibration: list[CalibrationBin]  # the reliability diagram
    references: list[ReferenceLoss]  # losses of simple predictors, in descending order
    groups: dict[str, list[Group]]  # the loss by each requested property of the characters
    memorisation: MemorisationReport | None = None  # how much of text and samples is in train
    surprise: Surprise | None = None  # the loss and the most likely ids at each position


def evaluate_text(
    model: LanguageModel, text: ScoredText, *, by: Sequence[str] = (), surprise: bool = False
) -> EvaluationReport:
    """Score `text`, and report the results. Long texts need no more memory than short ones.

    The loss is broken down by each property in `by`, a key of LABELS; UsageError is raised for
    another property. If `surprise` is True, the report's field `surprise` is set.
    """
    for property_ in by:
        if property_ not in LABELS:
            raise UsageError(f"{arguments('by')}: expected {' | '.join(LABELS)}, got {property_}")
    ids, vocabulary, units = text.ids, text.vocabulary, text.units
    blocks, calibration = BlockSums(units.ids), Calibration()
    breakdowns = {name: Breakdown(name, ids, vocabulary) for name in by}
    surprises = [Surprise(ids, vocabulary)] if surprise else []
    accumulators: list[Calibration | Breakdown | Surprise]
    accumulators = [calibration, *breakdowns.values(), *surprises]
    k = ALTERNATIVES if surprise else 1
    with phase(f"scoring {counted(units.ids, vocabulary.unit)}"):
        for scores in score_text(model, ids, k):
            blocks.add(scores.start - 1 + np.arange(len(scores.losses)), scores.losses)
            for each in accumulators:
                each.add(scores)
    loss = float(blocks.sums.sum()) / units.ids
    per_character = units.per_character(loss)
    means = [units.per_character(mean) for mean in blocks.means()]
    _, probabilities, hits = calibration.sums.T
    references = []
    if text.train is not None:
        with phase("compressing the text, and counting its n-grams"):
            scale = units.ids / units.characters
            references = reference_losses(text.train, ids, vocabulary, scale)
    return EvaluationReport(
        text=text.name,
        unit=vocabulary.unit,
        ids=units.ids,
        characters=units.characters,
        bytes=units.bytes,
        outside=text.outside,
        loss=loss,
        loss_per_character=per_character,
        interval=mean_interval(means) if len(means) > 1 else None,
        bits_per_character=per_character / math.log(2),
        bits_per_byte=units.bits_per_byte(loss),
        accuracy=float(hits.sum() / units.ids),
        calibration_error=float(np.abs(probabilities - hits).sum() / units.ids),
        calibration=calibration.bins(),
        references=references,
        groups={name: each.groups() for name, each in breakdowns.items()},
        surprise=surprises[0] if surprise else None,
    )
