"""What a run carries from step to step beside its weights, and its reasons to stop."""

import math
from typing import Annotated

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt
from pydantic.dataclasses import dataclass

from gpt.config.schema import TrainConfig

Metric = Annotated[str, Field(pattern="^(train_loss|lr|grad_norm|chars_per_s)$")]


@dataclass(config=ConfigDict(strict=True, extra="forbid"))  # it comes from a file
class Progress:
    """What is saved with each checkpoint of the evaluations, skipped steps and time so far.

    The losses are those of the evaluations since training began, on the val split or, with
    `train.eval_characters`, on a part of it.
    """

    loss: float = math.inf
    best_loss: float = math.inf
    best_step: NonNegativeInt = 0  # before the first of them
    val_loss: float | None = None  # of the weights as they are, if known
    since_best: NonNegativeInt = 0  # evaluations in a row without a new best
    pending: dict[Metric, float] | None = None  # metrics of a step still to be evaluated
    ended: bool = False  # early, by a target or by patience
    skipped_in_a_row: NonNegativeInt = 0  # steps
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the learning rates; halved by a rollback
    rewarm_step: NonNegativeInt | None = None  # at which the schedule was changed by a resume
    rewarm_rate: NonNegativeFloat = 0.0  # the schedule's learning rate just before
    elapsed_s: NonNegativeFloat = 0.0  # of training, over all resumes

    def evaluated(self, step: int, loss: float) -> bool:
        """Take in an evaluation; whether it is the best so far."""
        self.loss, is_best = loss, loss < self.best_loss
        if is_best:
            self.best_loss, self.best_step, self.since_best = loss, step, 0
        else:
            self.since_best += 1
        return is_best

    def early_stop(self, config: TrainConfig) -> str:
        """The reason to stop before the last step, or an empty string."""
        target, patience = config.stop_at_val_loss, config.patience
        if target is not None and self.loss <= target:
            return f"val loss {self.loss:.4f} is at train.stop_at_val_loss {target}"
        if patience is not None and self.since_best >= patience:
            return (
                f"the val loss has not improved since step {self.best_step}, which is the "
                f"checkpoint that `gpt sample` uses (train.patience {patience})"
            )
        return ""
