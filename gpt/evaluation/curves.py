"""Curve of a run's val loss during training, from metrics.jsonl or from nanoGPT's log."""

import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpt.errors import UsageError
from gpt.runs.old_losses import recorded_loss

NANOGPT_LINE = re.compile(  # matches an evaluation, an iteration, or a size of the model or batch
    r"step (?P<step>\d+): train loss \S+, val loss (?P<val>[^\s,]+)"
    r"|iter (?P<iter>\d+): loss \S+, time (?P<ms>[\d.]+)ms"
    r"|tokens per iteration will be: (?P<tokens>\d[\d,]*)"
    r"|number of parameters: (?P<millions>[\d.]+)M"
)


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run."""

    steps: list[int]  # steps after which val was evaluated, ascending
    characters: list[int]  # number of characters (or tokens) that were trained on by then
    seconds: list[float]  # seconds of training by then
    losses: list[float]  # losses on val, or on a part (`train.eval_characters`); can be NaN
    final_loss: float | None  # loss of the last evaluation, on all of val; None if there is none

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
    """Read a run's curve, in nats per id, from metrics.jsonl; without this file, it is empty."""
    points, final_loss = [], None
    path = run / "metrics.jsonl"
    with suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            # skip damaged lines, and lines without an evaluation
            with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
                record = json.loads(line)
                is_part = "val_loss_part" in record
                loss = recorded_loss(record, "val_loss_part" if is_part else "val_loss")
                step = int(record["step"])
                points.append((step, characters_per_step * step, float(record["elapsed_s"]), loss))
                if "val_loss" in record and step > 0:  # at step 0, training has not begun
                    final_loss = recorded_loss(record, "val_loss")
    steps, seen, seconds, losses = map(list, zip(*points, strict=True)) if points else ([],) * 4
    return Curve(steps, seen, seconds, losses, final_loss)


def read_nanogpt_log(path: Path) -> tuple[Curve, int | None]:
    """Read the curve, in nats per token, and the number of parameters from nanoGPT's output.

    nanoGPT prints the time of some iterations only. The others are assumed to take as long as a
    printed one nearby. Iterations with an evaluation are not used for this, as they are slower.
    """
    text = path.read_text("utf-8", errors="replace")

    def number(group: str) -> float:
        with suppress(ValueError):
            return float(match[group])
        line = text.count("\n", 0, match.start()) + 1
        raise UsageError(
            f"{path}, line {line}: expected a number, got {match[group]!r}; correct or delete it"
        )

    points, tokens, parameters = [], 0, None
    seconds, last_iteration, typical_s, evaluated = 0.0, -1, 0.0, -1
    for match in NANOGPT_LINE.finditer(text):
        found = match.groupdict()
        if found["tokens"]:
            tokens = int(found["tokens"].replace(",", ""))
        elif found["millions"]:
            parameters = round(1e6 * number("millions"))
        elif found["val"]:
            evaluated = int(found["step"])
            skipped = max(evaluated - last_iteration - 1, 0)  # iterations without a line
            seconds, last_iteration = seconds + skipped * typical_s, evaluated - 1
            points.append((evaluated, tokens * evaluated, seconds, number("val")))
        else:
            iteration, iteration_s = int(found["iter"]), number("ms") / 1000
            if iteration != evaluated:
                typical_s = iteration_s
            seconds += iteration_s + (iteration - last_iteration - 1) * typical_s
            last_iteration = iteration
    if all(math.isnan(loss) for step, *_, loss in points if step):
        raise UsageError(
            f"{path}: expected a run, a sweep or the log of nanoGPT, with lines such as "
            f"`step 250: train loss 1.97, val loss 2.05`; found no val loss after step 0 that is a "
            f"number; name another file"
        )
    steps, seen, times, losses = map(list, zip(*points, strict=True))
    return Curve(steps, seen, times, losses, losses[-1]), parameters
