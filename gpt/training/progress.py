"""What a run carries from step to step beside its weights, and its reasons to stop early."""

import math
from typing import Annotated

from pydantic import ConfigDict, Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from gpt.config.schema import TrainConfig

Metric = Annotated[str, Field(pattern="^(train_loss|lr|grad_norm|chars_per_s)$")]


@dataclass(config=ConfigDict(strict=True, extra="forbid"))  # it comes from a file
class Progress:
    """What is saved with each checkpoint of the evaluations and of skipped steps so far."""

    val_loss: float = math.inf
    val_step: NonNegativeInt | None = None  # at which that was
    best_val_loss: float = math.inf
    best_step: NonNegativeInt = 0  # 0 before the first evaluation in training
    since_best: NonNegativeInt = 0  # evaluations in a row without a new best
    pending: dict[Metric, float] | None = None  # metrics of a step still to be evaluated
    ended: bool = False  # early, by a target or by patience
    bad_in_a_row: NonNegativeInt = 0  # skipped steps
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the learning rates; halved by a rollback

    def note(self, step: int, val_loss: float) -> bool:
        """Take in an evaluation; whether it is the best since training began."""
        self.val_loss, self.val_step = val_loss, step
        is_best = step > 0 and val_loss < self.best_val_loss
        if is_best:
            self.best_val_loss, self.best_step, self.since_best = val_loss, step, 0
        elif step > 0:
            self.since_best += 1
        return is_best

    def early_stop(self, config: TrainConfig) -> str:
        """The reason to stop before the last step, or an empty string."""
        target, patience = config.stop_at_val_loss, config.patience
        if target is not None and self.val_loss <= target:
            return f"val loss {self.val_loss:.4f} is at train.stop_at_val_loss {target}"
        if patience is not None and self.since_best >= patience:
            return f"no better val loss in {patience} evaluations (train.patience)"
        return ""
