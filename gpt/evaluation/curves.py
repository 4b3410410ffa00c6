"""Curve of a run's val loss during training, from metrics.jsonl."""

import json
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpt.runs.old_losses import recorded_loss


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run."""

    steps: list[int]  # steps after which val was evaluated, ascending
    characters: list[int]  # number of characters that were trained on by then
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
