"""The state of a run: what checkpoints store, what belongs to the current step, how it starts.

Only `Trainer` writes to a run's `Progress` and `CurrentStep`. It makes a new `CurrentStep` for each
step.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt
from pydantic.dataclasses import dataclass as pydantic_dataclass

from gpt.config.schema import Config
from gpt.training.members import AnyStep
from gpt.training.schedule import Schedule
from gpt.training.step import StepResult
from gpt.training.time_budget import TimeBudget

Metric = Annotated[str, Field(pattern="^(train_loss|lr|grad_norm|chars_per_s|passes)$")]


@pydantic_dataclass(config=ConfigDict(strict=True))  # so that a damaged file raises an error
class Progress:
    """Losses (nats per id) and counters of a run so far, saved with each checkpoint."""

    loss: float = math.inf  # newest `val_loss`, or `val_loss_part` with train.eval_characters
    best_loss: float = math.inf  # `loss` at `best_step`, possibly on only a part of val
    best_step: NonNegativeInt = 0
    val_loss: float | None = None  # loss of the current weights on all of val; None if unknown
    best_val_loss: float = math.inf  # `val_loss` of the best checkpoint; set at the end of the run
    middle_loss: float = math.inf  # newest `loss` in the first half of the run
    since_best: NonNegativeInt = 0  # evaluations in a row without a new best loss
    pending: dict[Metric, float] | None = None  # metrics of a step whose evaluation was interrupted
    ended: bool = False  # whether early stopping has ended the run
    skipped_in_a_row: NonNegativeInt = 0  # number of steps skipped since the last good step
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0  # factor of all learning rates; see Schedule
    elapsed_s: NonNegativeFloat = 0.0  # seconds of training, over all resumes


@dataclass
class CurrentStep:
    """State that belongs to the current step only. No checkpoint contains it."""

    step: int  # number of steps done
    unread: list[StepResult] = field(default_factory=list)  # results of the newest steps
    metrics: dict[str, float] = field(default_factory=dict)  # by name; empty if none are due
    is_best: bool = False  # whether this step was evaluated and has the lowest loss so far
    reason_to_stop: str = ""  # why training ends at this step; empty while it continues
    is_unsaved: bool = True  # whether the newest checkpoint lacks something of this step


@dataclass(frozen=True)
class StartingPoint:
    """State from which a new or resumed run trains."""

    config: Config  # settings for the training that follows
    step: int  # number of steps done
    train_step: AnyStep
    schedule: Schedule
    budget: TimeBudget
    progress: Progress
    saved_config: Config | None = None  # the settings in the checkpoint; None for a new run
    provenance: dict[str, str | int] = field(default_factory=dict)  # see `initial_model`
