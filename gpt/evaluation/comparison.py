"""Compare runs: group those that differ only by seed into rows, and compare the rows' losses.

Each row is a configuration, trained with one or more seeds. The difference of two rows' mean losses
has two confidence intervals: one for other text of the same kind, from losses on blocks of the
text, and one for other seeds, by Welch's method, if each row has two or more seeds.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from gpt.config.schema import SETTINGS
from gpt.errors import UsageError
from gpt.evaluation.intervals import Interval, SeedMean, mean_interval, seed_mean, welch_interval

# runs of one row may differ in these settings, which do not affect what is compared
NOT_COMPARED = {
    *("seed", "threads", "data.source", "train.checkpoint_every", "train.sample_length"),
    *(key for key in SETTINGS if key.startswith("sample.")),
}
NANOGPT_LINE = re.compile(  # a line of nanoGPT's log with a loss, a time or a size
    r"step (?P<step>\d+): train loss \S+, val loss (?P<val>nan|inf|\d+(\.\d+)?(e[-+]\d+)?)"
    r"|iter (?P<iter>\d+): loss \S+, time (?P<ms>\d+(\.\d+)?)ms"
    r"|tokens per iteration will be: (?P<tokens>\d[\d,]*)"
    r"|number of parameters: (?P<millions>\d+(\.\d+)?)M"
)


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run."""

    steps: list[int]  # steps after which val was evaluated, ascending
    characters: list[int]  # characters (nanoGPT: tokens) seen in training before each evaluation
    seconds: list[float]  # seconds of training before each evaluation
    losses: list[float]  # losses on val or a part of it (`train.eval_characters`); can be NaN
    final_loss: float | None  # loss of the last evaluation on all of val; None if there is none

    @property
    def best_loss(self) -> float | None:
        """The lowest val loss that is finite; None if there is none."""
        return min(filter(math.isfinite, self.losses), default=None)

    def scaled(self, factor: float) -> "Curve":
        """Return the curve with all losses multiplied by `factor`, to change their unit."""
        final = None if self.final_loss is None else factor * self.final_loss
        return replace(self, losses=[factor * loss for loss in self.losses], final_loss=final)

    def seconds_to(self, loss: float) -> float | None:
        """Return the seconds of training until the val loss was `loss` or less; None if never."""
        reached = (s for s, each in zip(self.seconds, self.losses, strict=True) if each <= loss)
        return next(reached, None)


def read_curve(run: Path, characters_per_step: int) -> Curve:
    """Return the curve in a run's metrics.jsonl, in nats per id; an empty one without this file."""
    points, final_loss = [], None
    path = run / "metrics.jsonl"
    with suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            # skip damaged lines, and lines without an evaluation
            with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
                record = json.loads(line)
                is_part = "val_loss_part" in record
                loss = float(record["val_loss_part" if is_part else "val_loss"])
                step = int(record["step"])
                points.append((step, characters_per_step * step, float(record["elapsed_s"]), loss))
                if "val_loss" in record and step > 0:  # at step 0, training has not begun
                    final_loss = float(record["val_loss"])
    steps, seen, seconds, losses = map(list, zip(*points, strict=True)) if points else ([],) * 4
    return Curve(steps, seen, seconds, losses, final_loss)


def read_nanogpt_log(path: Path) -> tuple[Curve, int | None]:
    """Read the curve, in nats per token, and the number of parameters from nanoGPT's output.

    nanoGPT prints the time of some iterations only. Any other iteration is assumed to take as long
    as a printed one nearby that has no evaluation; iterations with an evaluation are slower.
    """
    points, tokens, parameters = [], 0, None
    seconds, last_iteration, typical_s, evaluated = 0.0, -1, 0.0, -1
    for match in NANOGPT_LINE.finditer(path.read_text("utf-8", errors="replace")):
        found = match.groupdict()
        if found["tokens"]:
            tokens = int(found["tokens"].replace(",", ""))
        elif found["millions"]:
            parameters = round(1e6 * float(found["millions"]))
        elif found["val"]:
            evaluated = int(found["step"])
            skipped = max(evaluated - last_iteration - 1, 0)  # iterations that were not printed
            seconds, last_iteration = seconds + skipped * typical_s, evaluated - 1
            points.append((evaluated, tokens * evaluated, seconds, float(found["val"])))
        else:
            iteration, iteration_s = int(found["iter"]), float(found["ms"]) / 1000
            if iteration != evaluated:
                typical_s = iteration_s
            seconds += iteration_s + (iteration - last_iteration - 1) * typical_s
            last_iteration = iteration
    if not any(math.isfinite(loss) for step, *_, loss in points if step):
        raise UsageError(
            f"{path}: expected a run, a sweep or the log of nanoGPT, with lines such as "
            f"`step 250: train loss 1.97, val loss 2.05`; found no finite val loss after step 0; "
            f"name another file"
        )
    steps, seen, times, losses = map(list, zip(*points, strict=True))
    return Curve(steps, seen, times, losses, losses[-1]), parameters


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """Settings and results of a run, or the curve of a log that another program wrote.

    Losses are in nats per character. Unknown numbers are None.
    """

    name: str  # folder of the run, or name of the log
    seed: int | None = None  # None for a log
    settings: dict[str, Any] = field(default_factory=dict)  # by dotted key; empty for a log
    text_sha256: str | None = None  # hash of the run's text
    val_hashes: Sequence[str] = ()  # two runs have the same val text if they share a hash
    curve: Curve  # evaluations during training
    loss: float  # val loss of the best checkpoint
    parameters: int | None = None
    blocks: Sequence[float] = ()  # mean loss of the best checkpoint on each block of the val split


@dataclass(frozen=True)
class Row:
    """Row of a comparison: runs that differ only by seed. Losses are in nats per character."""

    number: int  # position in `Comparison.rows`, from 1
    runs: list[ComparedRun]
    settings: dict[str, Any]  # settings that differ between rows, by dotted key
    loss: SeedMean  # val loss of the best checkpoints
    final_loss: SeedMean | None  # val loss at the end of training
    steps: float | None  # steps until the last evaluation, mean over the runs
    seconds: float | None  # seconds until the last evaluation, mean over the runs
    seconds_to: float | None  # mean seconds to reach `Comparison.reached`; None if unknown
    parameters: int | None


@dataclass(frozen=True)
class RowDifference:
    """The mean loss of a row minus that of the first row, in nats per character."""

    row: int  # `Row.number` of the compared row
    difference: float  # negative if the row is better than the first row
    text: Interval | None  # interval of `difference` on unseen text; None if unknown
    seeds: Interval | None  # interval over seeds; None if either row has only one run


@dataclass(frozen=True)
class Comparison:
    """Rows of a comparison, and how the loss of each row differs from that of the first."""

    rows: list[Row]  # in the order of their first runs
    differences: list[RowDifference]  # one for each row but the first
    reached: float | None  # lowest val loss that all runs reach, rounded up to two decimals


def compare_runs(runs: Sequence[ComparedRun]) -> Comparison:
    """Group `runs` into rows, and compare each row with the first.

    Runs that differ only by seed share a row. A run that repeats the settings and the seed of an
    earlier run goes into another row.
    """
    lowest = [best for run in runs if (best := run.curve.best_loss) is not None]
    reached = math.ceil(100 * max(lowest)) / 100 if lowest else None
    groups, seen = dict[tuple[str, int], list[ComparedRun]](), Counter[tuple[str, int | None]]()
    for run in runs:
        compared = {k: v for k, v in run.settings.items() if k not in NOT_COMPARED}
        identity = json.dumps([compared, run.text_sha256], sort_keys=True)
        groups.setdefault((identity, seen[identity, run.seed]), []).append(run)
        seen[identity, run.seed] += 1
    differing = _differing([group[0] for group in groups.values()])
    rows = [_row(i, group, differing, reached) for i, group in enumerate(groups.values(), 1)]
    return Comparison(rows, [_difference(rows[0], row) for row in rows[1:]], reached)


def _differing(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the keys of the settings that differ between `runs`; ignore logs, which have none."""
    settings = [run.settings for run in runs if run.settings]
    is_one_text = len({run.text_sha256 for run in runs}) == 1  # one text can have several paths
    ignored = NOT_COMPARED if is_one_text else NOT_COMPARED - {"data.source"}
    keys = dict.fromkeys(key for each in settings for key in each if key not in ignored)
    return [key for key in keys if len({json.dumps(each.get(key)) for each in settings}) > 1]


def _row(
    number: int, runs: list[ComparedRun], differing: Sequence[str], reached: float | None
) -> Row:
    first, curves = runs[0], [run.curve for run in runs]
    loss = seed_mean([run.loss for run in runs])
    assert loss is not None
    return Row(
        number=number,
        runs=runs,
        settings={key: first.settings[key] for key in differing if key in first.settings},
        loss=loss,
        final_loss=seed_mean([curve.final_loss for curve in curves]),
        steps=_mean([curve.steps[-1] for curve in curves if curve.steps]),
        seconds=_mean([curve.seconds[-1] for curve in curves if curve.seconds]),
        seconds_to=None if reached is None else _mean([c.seconds_to(reached) for c in curves]),
        parameters=first.parameters,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _difference(first: Row, row: Row) -> RowDifference:
    """Compare `row` with the `first` row."""
    losses = [[run.loss for run in each.runs] for each in (first, row)]
    blocks = [[run.blocks for run in each.runs] for each in (first, row)]
    text = seeds = None
    if all(len(each) > 1 for each in (*blocks[0], *blocks[1])):
        means = [[fmean(each) for each in zip(*row_blocks, strict=True)] for row_blocks in blocks]
        text = mean_interval([b - a for a, b in zip(*means, strict=True)])
    if all(len(each) > 1 for each in losses):
        seeds = welch_interval(*losses)
    return RowDifference(row.number, row.loss.mean - first.loss.mean, text, seeds)
