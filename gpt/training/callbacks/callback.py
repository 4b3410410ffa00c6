"""The events of a run, and the caller's function that receives them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        losses: by name, such as `val_loss`.
        is_best: whether the first of them is the lowest so far.
        warning: about overfitting; empty if there is none.
        sample: a sample of the model; None with `train.sample_length` 0.
    """

    losses: Mapping[str, float]
    is_best: bool
    warning: str
    sample: str | None


class Callback:
    """Receives the events of a run on rank 0. Each method does nothing by default.

    `step` is the number of steps done, `elapsed_s` the seconds of training over all resumes.
    """

    def on_step(self, step: int) -> None:
        """Handle an update of the weights."""

    def on_plan(self, step: int, elapsed_s: float, steps: int) -> None:
        """Handle a plan of `steps` for the whole run."""

    def on_notice(self, step: int, elapsed_s: float, text: str) -> None:
        """Handle a message, such as one about a skipped step."""

    def on_evaluation(self, step: int, elapsed_s: float, evaluation: Evaluation) -> None:
        """Handle an evaluation."""

    def on_metrics(self, step: int, elapsed_s: float, metrics: Mapping[str, float]) -> None:
        """Handle all that was measured at this step."""

    def before_checkpoint(self) -> None:
        """Flush what was recorded: a resume drops only the records of later steps."""

    def on_checkpoint(self, step: int, path: str, is_best: bool) -> None:
        """Handle a checkpoint that was written to `path`."""

    def close(self) -> None:
        """Close files and bars."""


class EventFunction(Callback):
    """Calls `emit` with a dict for each event: see `on_event` of `gpt.api.train`."""

    def __init__(self, emit: Callable[[dict[str, Any]], object]) -> None:
        self.emit = emit

    def on_plan(self, step: int, elapsed_s: float, steps: int) -> None:
        """Emit `plan`."""
        self.emit({"kind": "plan", "step": step, "steps": steps})

    def on_notice(self, step: int, elapsed_s: float, text: str) -> None:
        """Emit `notice`."""
        self.emit({"kind": "notice", "step": step, "text": text})

    def on_evaluation(self, step: int, elapsed_s: float, evaluation: Evaluation) -> None:
        """Emit `notice` for a warning, `sample` and `evaluation`."""
        if evaluation.warning:
            self.on_notice(step, elapsed_s, evaluation.warning)
        if evaluation.sample is not None:
            self.emit({"kind": "sample", "step": step, "text": evaluation.sample})
        losses = {**evaluation.losses, "is_best": evaluation.is_best}
        self.emit({"kind": "evaluation", "step": step, **losses})

    def on_metrics(self, step: int, elapsed_s: float, metrics: Mapping[str, float]) -> None:
        """Emit `step`, without the val losses, which `evaluation` has."""
        if "train_loss" in metrics:
            shown = {name: value for name, value in metrics.items() if name[:3] != "val"}
            self.emit({"kind": "step", "step": step, **shown})

    def on_checkpoint(self, step: int, path: str, is_best: bool) -> None:
        """Emit `checkpoint`."""
        self.emit({"kind": "checkpoint", "step": step, "path": path, "is_best": is_best})
