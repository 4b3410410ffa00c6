"""The context, the progress and the outcome of a run, for all parts of training."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt
from pydantic.dataclasses import dataclass as pydantic_dataclass

from gpt.config.schema import Config
from gpt.config.train_config import TrainConfig
from gpt.distributed import Ranks
from gpt.files import from_here
from gpt.text.corpus import Corpus

OVERFIT_EVALUATIONS = 3  # warn after this number of evaluations in a row without a new best loss

Metric = Annotated[str, Field(pattern="^(train_loss|lr|grad_norm|chars_per_s|passes)$")]


@dataclass(frozen=True)
class RunContext:
    """Settings, text, folder, ranks, device and clock of a run, for all parts of training."""

    config: Config
    corpus: Corpus
    folder: Path  # absolute
    ranks: Ranks
    should_stop: Callable[[], bool]  # any thread may call it
    device: torch.device
    clock: Callable[[], float]  # seconds since the command began

    @property
    def name(self) -> str:
        """The run's folder for messages: a relative path if it is inside the working folder."""
        return str(from_here(self.folder))


class Diverged(Exception):
    """The loss, the gradient or a weight is NaN or infinite. The message names the step."""


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

    def add(self, step: int, loss: float) -> bool:
        """Record the `loss` of an evaluation; return whether it is the best so far."""
        self.loss = loss
        is_best = loss < self.best_loss
        if is_best:
            self.set_best(step)
        else:
            self.since_best += 1
        return is_best

    def set_best(self, step: int) -> None:
        """Set the best step to `step`, and the best loss to the loss that was recorded last."""
        self.best_loss, self.best_step, self.since_best = self.loss, step, 0

    def overfit_warning(self) -> str:
        """Return a warning when `since_best` reaches OVERFIT_EVALUATIONS, else an empty string."""
        if self.since_best != OVERFIT_EVALUATIONS or self.loss <= self.best_loss:
            return ""
        return (
            f"the val loss has risen since step {self.best_step}: the model overfits; the "
            f"checkpoint of step {self.best_step} remains the best"
        )

    def early_stop(self, train: TrainConfig) -> str:
        """Return why the settings `train` end training early; an empty string if they do not."""
        target, patience = train.stop_at_val_loss, train.patience
        if target is not None and self.loss <= target:
            part = " on a part of val" if train.eval_characters else ""
            return f"val loss {self.loss:.4f}{part} has reached train.stop_at_val_loss {target}"
        if patience is not None and self.since_best >= patience:
            return (
                f"the val loss has not improved since step {self.best_step}, which is the "
                f"checkpoint that `gpt sample` uses (train.patience {patience})"
            )
        return ""


@dataclass(frozen=True)
class Outcome:
    """Result of a run that has ended. Val losses are in nats per id (character or byte)."""

    run: str  # path of the run's folder
    text: str  # name of the text
    seed: int
    parameters: int
    reason: str  # why training ended
    step: int  # number of steps done
    passes: float  # number of passes over the train split in `step` steps
    advice: str  # a sentence: what would lower the val loss most
    val_loss: float  # after the last step, on the whole val split
    val_loss_per_character: float  # nats
    best_val_loss: float  # val loss of the best checkpoint
    best_val_loss_per_character: float  # nats
    bits_per_byte: float  # best val loss in bits per byte of UTF-8; comparable across vocabularies
    best_step: int
    trigram_bits_per_character: float | None  # baseline: a trigram model of the train split
    elapsed_s: float  # seconds of training, over all resumes
