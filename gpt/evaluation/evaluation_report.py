"""Evaluate a model on a text, and report its loss, calibration and losses to compare with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpt.counts.mixture import Mixture
from gpt.errors import UsageError, counted
from gpt.evaluation.baselines import ReferenceLoss, comparison, reference_losses
from gpt.evaluation.bootstrap import BlockSums, Interval
from gpt.evaluation.breakdown import PROPERTIES, Breakdown, Group
from gpt.evaluation.calibration import Calibration, CalibrationBin
from gpt.evaluation.memorisation import MemorisationReport
from gpt.evaluation.scored_text import ScoredText
from gpt.evaluation.scores import score_text, window_stride
from gpt.evaluation.surprise import ALTERNATIVES, Surprise
from gpt.model.ensemble import LanguageModel
from gpt.status import phase


@dataclass(frozen=True)
class EvaluationReport:
    """The result of an evaluation. Losses are means over all characters but the first.

    The last three fields are None if they were not requested.
    """

    text: str  # name of the text
    rule: str  # how the text was divided into windows, and from which ids each id was predicted
    unit: str  # what an id stands for: `character` or `byte`
    ids: int  # size of the scored text in ids
    characters: int
    bytes: int
    outside: int  # number of characters outside the model's vocabulary
    loss: float  # nats per id; on the val split in the windows of training, this is `val_loss`
    loss_per_character: float  # nats
    interval: Interval | None  # confidence interval of `loss_per_character`; None for a short text
    bits_per_character: float
    bits_per_byte: float  # bits per byte of UTF-8
    perplexity: float  # exp(`loss_per_character`)
    accuracy: float  # fraction of ids to which the model gave the highest probability
    calibration_error: float  # expected calibration error of the most likely id
    calibration: list[CalibrationBin]  # the reliability diagram
    references: list[ReferenceLoss]  # losses of simple predictors, the lowest last
    comparison: str  # a sentence that compares the model with the best of `references`
    groups: dict[str, list[Group]]  # the loss by each requested property of the characters
    adaptive_loss: float | None = None  # nats per character while learning; no `val_loss`
    memorisation: MemorisationReport | None = None  # how much of train the model repeats
    surprise: Surprise | None = None  # the loss and the likely characters at each id


def evaluate_text(
    model: LanguageModel,
    text: ScoredText,
    *,
    mixture: Mixture | None = None,
    stride: int | None = None,
    by: Sequence[str] = (),
    surprise: bool = False,
) -> EvaluationReport:
    """Score `text`, and report the results. Long texts need no more memory than short ones.

    Args:
        model: the network, which is set to evaluation mode.
        text: the text.
        mixture: n-gram counts to mix with the network's predictions; None for the network alone.
        stride: the ids from one input of the network to the next; None if inputs do not overlap.
        by: the properties by which to break the loss down, keys of PROPERTIES.
        surprise: whether to report the loss and the likely characters at each id.

    Raises:
        UsageError: `stride` or an element of `by` is wrong.
    """
    T, context = model.config.T if mixture is None else mixture.T, model.config.T
    if stride is not None and not 1 <= stride <= context:
        setting = "model.T" if context == T else "model.attention_window"
        raise UsageError(f"--stride: expected 1 to {setting} = {context}, got {stride}")
    for property_ in by:
        if property_ not in PROPERTIES:
            raise UsageError(f"--by: expected {' | '.join(PROPERTIES)}, got {property_}")
    units, n, unit = text.units, text.units.ids, text.vocabulary.unit
    blocks, calibration = BlockSums(n), Calibration()
    breakdowns = {name: Breakdown(name, text.ids, text.vocabulary) for name in dict.fromkeys(by)}
    each_id = Surprise(text.ids, text.vocabulary) if surprise else None
    accumulators: list[Calibration | Breakdown | Surprise] = [calibration, *breakdowns.values()]
    if each_id is not None:
        accumulators.append(each_id)
    hits, k = 0, ALTERNATIVES if surprise else 1
    with phase(f"scoring {counted(n, unit)}"):
        for scores in score_text(
            model, text.ids, text.vocabulary, mixture=mixture, stride=stride, k=k
        ):
            blocks.add(scores.start - 1 + np.arange(len(scores.losses)), scores.losses)
            hits += int(np.count_nonzero(scores.hits))
            for each in accumulators:
                each.add(scores)
    loss = float(blocks.sums.sum()) / n
    per_character, interval = units.per_character(loss), blocks.interval()
    references = []
    if text.train is not None:
        with phase("compressing the text, and counting its n-grams"):
            scale = n / units.characters
            references = reference_losses(text.train, text.ids, text.vocabulary, scale)
    return EvaluationReport(
        text=text.name,
        rule=rule(T, context, stride, window_stride(T, stride, mixture), unit),
        unit=unit,
        ids=n,
        characters=units.characters,
        bytes=units.bytes,
        outside=text.outside,
        loss=loss,
        loss_per_character=per_character,
        interval=interval and interval.scaled(per_character / loss),
        bits_per_character=per_character / math.log(2),
        bits_per_byte=units.bits_per_byte(loss),
        perplexity=math.exp(per_character),
        accuracy=hits / n,
        calibration_error=calibration.error,
        calibration=calibration.bins,
        references=references,
        comparison=comparison(per_character, references),
        groups={name: each.groups() for name, each in breakdowns.items()},
        surprise=each_id,
    )


def rule(T: int, context: int, stride: int | None, step: int | None, unit: str) -> str:
    """Return a phrase that describes the windows, and from which ids each id is predicted.

    Args:
        T: the length of a window, in ids.
        context: the number of ids that attention sees at once, at most `T`.
        stride: the ids from one input of the network to the next; None if inputs do not overlap.
        step: the ids from one window of n-gram counts to the next; None without `stride`.
        unit: what an id stands for: `character` or `byte`.
    """
    attention = "" if context == T else f" (attention sees {context:,} at once)"
    if stride is None or step is None:
        return (
            f"windows of {T:,} {unit}s{attention} that do not overlap, as in training; each {unit} "
            f"but the first is scored once, from those before it in its window"
        )
    is_counted = (T, stride) != (context, step)
    counts = f"; counts see windows of {T:,}, one every {step:,}" if is_counted else ""
    return (
        f"windows of {context:,} {unit}s, one every {stride:,}{counts}; each {unit} but the first "
        f"is scored once, from at least {T - step:,} {unit}s before it, or all"
    )
