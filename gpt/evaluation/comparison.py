"""Compare runs: rows of runs that differ only by seed, and the differences between rows.

Each row is a configuration, trained with one or more seeds. A difference of the mean losses of two
rows is uncertain for two reasons, each with its own interval. On other text of the same kind, the
losses would differ: this is estimated from blocks of the text. With other seeds, the models would
differ: this is estimated by Welch's method, which needs two or more seeds in each row.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any, Literal

from gpt.errors import counted
from gpt.evaluation.student import (
    SeedMean,
    StudentInterval,
    paired_interval,
    seed_mean,
    seeds_needed,
    welch_interval,
)
from gpt.runs.curves import Curve

NOT_COMPARED = {"seed", "threads"}  # settings in which the runs of a row may differ
MAX_SEEDS_NEEDED = 1000  # number of seeds above which a difference counts as negligible


@dataclass(frozen=True)
class ComparedRun:
    """Settings and results of a run, or the curve of a log that another program wrote.

    Losses are in nats per character.

    Attributes:
        name: the folder of the run, or the name of a log.
        seed: the seed; None for a log.
        settings: the settings by dotted key; empty for a log.
        text_sha256: the hash of the run's text; None if unknown.
        curve: the evaluations during training.
        loss: the val loss of the best checkpoint.
        bits_per_byte: `loss` in bits per byte of UTF-8; None if unknown.
        parameters: the number of parameters; None if unknown.
        memory_bytes: the memory that training takes on this machine by the estimate of
            `gpt train --dry-run`, in bytes; None if unknown.
        block: the number of characters of each block of the val split; 0 if `blocks` is empty.
        blocks: the mean loss of the best checkpoint on each whole block; empty if not measured.
    """

    name: str
    seed: int | None
    settings: dict[str, Any]
    text_sha256: str | None
    curve: Curve
    loss: float
    bits_per_byte: float | None = None
    parameters: int | None = None
    memory_bytes: float | None = None
    block: int = 0
    blocks: Sequence[float] = ()


@dataclass(frozen=True)
class Row:
    """Row of a comparison: runs that differ only by seed. Losses are in nats per character.

    Attributes:
        number: the number of the row, from 1.
        runs: the runs.
        settings: the settings that differ between rows, by dotted key.
        loss: the val loss of the best checkpoints.
        bits_per_byte: the same in bits per byte of UTF-8.
        final_loss: the val loss at the end of training.
        steps, seconds: the mean number of steps, and seconds of training, at the last evaluation.
        seconds_to: by loss, the mean seconds of training until an evaluation reached that loss;
            None if a run did not reach it.
        parameters: the number of parameters; None if unknown.
        memory_bytes: the estimated bytes that training takes on this machine; None if unknown.
    """

    number: int
    runs: list[ComparedRun]
    settings: dict[str, Any]
    loss: SeedMean
    bits_per_byte: SeedMean | None
    final_loss: SeedMean | None
    steps: float | None
    seconds: float | None
    seconds_to: dict[float, float | None]
    parameters: int | None
    memory_bytes: float | None


@dataclass(frozen=True)
class RowDifference:
    """The mean loss of a row minus that of the first row, in nats per character.

    A row consists of runs that differ only by seed.

    Attributes:
        row: the number of the row.
        difference: the difference of the mean losses; negative if `row` is better.
        text: confidence interval of the difference if the same models are scored on other text of
            this kind; None if the losses of blocks of the text are unknown.
        seeds: confidence interval of the difference if models with other seeds are scored on this
            text; None if a row has only one seed.
        rests_on: the name of the interval that `conclusion` is based on.
        is_different: whether `seeds`, and `text` if it is known, exclude a difference of zero.
        seeds_needed: the number of seeds to train in each row so that `seeds` excludes zero with
            probability 0.8; None if it does already, if the variance over seeds is unknown, or if
            no setting differs.
        conclusion: the result in words.
    """

    row: int
    difference: float
    text: StudentInterval | None
    seeds: StudentInterval | None
    rests_on: Literal["seeds", "text", "nothing"]
    is_different: bool
    seeds_needed: int | None
    conclusion: str


@dataclass(frozen=True)
class Comparison:
    """Rows of runs that differ only by seed, and how the loss of each row differs from the first.

    Attributes:
        rows: the rows, in the order of their first runs.
        differences: one for each row but the first.
        blocks: the number of blocks of the val split, whose losses show how much a difference
            depends on the text; 0 if these losses are unknown.
        block: the number of characters of each block.
    """

    rows: list[Row]
    differences: list[RowDifference]
    blocks: int
    block: int


def compare_runs(runs: Sequence[ComparedRun], losses: Sequence[float] = ()) -> Comparison:
    """Group `runs` into rows, and compare each row with the first.

    Args:
        runs: one or more runs. Those that differ only by seed form a row. A run with the settings
            and the seed of an earlier one is in another row.
        losses: val losses. For each, a row has the seconds of training until its runs reached that
            loss. By default, the lowest loss that all runs reach, rounded up to two decimals.
    """
    if not losses:
        lowest = [best for run in runs if (best := run.curve.best_loss) is not None]
        losses = [math.ceil(100 * max(lowest)) / 100] if lowest else []
    groups, seen = dict[tuple[str, int], list[ComparedRun]](), Counter[tuple[str, int | None]]()
    for run in runs:
        compared = {
            k: v for k, v in run.settings.items() if k not in {*NOT_COMPARED, "data.source"}
        }
        identity = json.dumps([compared, run.text_sha256], sort_keys=True)
        groups.setdefault((identity, seen[identity, run.seed]), []).append(run)
        seen[identity, run.seed] += 1
    differing = _differing([group[0] for group in groups.values()])
    rows = [_row(i, group, differing, losses) for i, group in enumerate(groups.values(), 1)]
    first, *others = [identity for identity, _ in groups]
    is_repeat = [bool(rows[0].runs[0].settings) and each == first for each in others]
    return Comparison(
        rows,
        [_difference(rows[0], *each) for each in zip(rows[1:], is_repeat, strict=True)],
        max(len(run.blocks) for run in runs),
        max(run.block for run in runs),
    )


def _differing(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the keys of the settings that differ between `runs`, except those in NOT_COMPARED.

    Runs without settings (logs of other programs) are ignored.
    """
    settings = [run.settings for run in runs if run.settings]
    ignored = {*NOT_COMPARED}
    if len({run.text_sha256 for run in runs}) == 1:  # the same text, perhaps by another path
        ignored.add("data.source")
    keys = dict.fromkeys(key for each in settings for key in each if key not in ignored)
    return [key for key in keys if len({json.dumps(each.get(key)) for each in settings}) > 1]


def _row(
    number: int, runs: list[ComparedRun], differing: Sequence[str], losses: Sequence[float]
) -> Row:
    first, curves = runs[0], [run.curve for run in runs]
    loss = seed_mean([run.loss for run in runs])
    assert loss is not None
    reached = {each: [curve.seconds_to(each) for curve in curves] for each in losses}
    return Row(
        number=number,
        runs=runs,
        settings={key: first.settings[key] for key in differing if key in first.settings},
        loss=loss,
        bits_per_byte=seed_mean([r.bits_per_byte for r in runs if r.bits_per_byte is not None]),
        final_loss=seed_mean([c.final_loss for c in curves if c.final_loss is not None]),
        steps=_mean([curve.steps[-1] for curve in curves if curve.steps]),
        seconds=_mean([curve.seconds[-1] for curve in curves if curve.seconds]),
        seconds_to={
            each: None if None in times else _mean([s for s in times if s is not None])
            for each, times in reached.items()
        },
        parameters=first.parameters,
        memory_bytes=first.memory_bytes,
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _difference(first: Row, row: Row, is_repeat: bool) -> RowDifference:
    """Return the loss of a row minus that of the first row, with confidence intervals.

    Args:
        first: the first row.
        row: the other row.
        is_repeat: whether the runs of `row` have settings and seeds of runs of `first`.
    """
    losses = [[run.loss for run in each.runs] for each in (first, row)]
    blocks = [[run.blocks for run in each.runs] for each in (first, row)]
    difference = row.loss.mean - first.loss.mean
    text = seeds = None
    if all(len(each) > 1 for each in (*blocks[0], *blocks[1])):
        means = [[fmean(each) for each in zip(*row_blocks, strict=True)] for row_blocks in blocks]
        text = paired_interval(*means)
    if all(len(each) > 1 for each in losses):
        seeds = welch_interval(*losses)
    needed = None
    variances = [variance(each) for each in losses if len(each) > 1]
    if variances and difference and not (is_repeat or (seeds and seeds.excludes_zero)):
        needed = seeds_needed(difference, 2 * fmean(variances))
    is_shown = seeds is not None and seeds.excludes_zero
    return RowDifference(
        row=row.number,
        difference=difference,
        text=text,
        seeds=seeds,
        rests_on="seeds" if seeds else "text" if text else "nothing",
        is_different=is_shown and (text is None or text.excludes_zero),
        seeds_needed=needed,
        conclusion="no setting and no seed differs from row 1: these runs are copies or repetitions"
        if is_repeat
        else _conclusion(difference, text, seeds, needed),
    )


def _conclusion(
    difference: float,
    text: StudentInterval | None,
    seeds: StudentInterval | None,
    needed: int | None,
) -> str:
    """Return in words whether a row has another loss than row 1, and on which texts.

    Args:
        difference: the row's loss minus that of row 1.
        text: the interval of the difference on other text; None if unknown.
        seeds: the interval of the difference with other seeds; None if unknown.
        needed: the number of seeds that would show the difference; None if unknown.
    """
    word = "better" if difference < 0 else "worse"
    if seeds is None:
        models = "the uncertainty is unknown"
        if text is not None and text.excludes_zero:
            models = f"this model is {word} than that of row 1 (rests on the text)"
        elif text is not None:
            models = "the text cannot tell the models apart (rests on the text)"
        return f"{models}; the effect of the settings is open: {_advice(needed)}"
    if not seeds.excludes_zero:
        return (
            f"open: other seeds may reverse the difference (rests on the seeds); {_advice(needed)}"
        )
    if text is None:
        return f"{word} than row 1 (rests on the seeds); on other text this is open"
    if text.excludes_zero:
        return f"{word} than row 1, also on other text of this kind (rests on the seeds)"
    return f"{word} than row 1 on this text (rests on the seeds); on other text this is open"


def _advice(needed: int | None) -> str:
    """Return a phrase that advises how many seeds to train.

    `needed` is the number of seeds that would show the difference; None if unknown.
    """
    if needed is None:
        return "train two or more seeds of each row"
    if needed > MAX_SEEDS_NEEDED:
        return f"a difference this small needs more than {MAX_SEEDS_NEEDED:,} seeds of each row"
    return f"about {counted(needed, 'seed')} of each row would settle it"
