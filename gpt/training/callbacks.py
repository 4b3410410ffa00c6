"""Receive the events of a run: the interface `Callback`, and calls of the user's `on_event`."""

from collections.abc import Callable, Mapping
from typing import Any

from gpt.model.ensemble import LanguageModel
from gpt.training.run_context import Outcome

OnEvent = Callable[[dict[str, Any]], object]


class Callback:
    """Receives the events of a run on rank 0. Each method does nothing by default.

    `step` is the number of steps done. `is_best` is true if no earlier val loss was as low.
    """

    def on_step(self, step: int) -> None:
        """Handle an update of the weights."""

    def on_plan(self, step: int, steps: int) -> None:
        """Handle a new plan: the whole run now has `steps` steps."""

    def on_notice(self, step: int, text: str) -> None:
        """Handle a message, such as one about a skipped step."""

    def on_sample(self, step: int, text: str) -> None:
        """Handle a text that the model has generated."""

    def on_evaluation(self, step: int, losses: Mapping[str, float], is_best: bool) -> None:
        """Handle the losses of an evaluation, in nats per id, by names such as `val_loss`."""

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Handle a step's metrics by name, such as `train_loss`, `lr` and `passes`."""

    def before_checkpoint(self) -> None:
        """Flush records to the disk, so that a resume finds all records up to the checkpoint."""

    def on_checkpoint(self, step: int, path: str, is_best: bool) -> None:
        """Handle a checkpoint that was written to `path`."""

    def on_end(self, outcome: Outcome, model: LanguageModel) -> None:
        """Handle the end of the run: its final scores, and the model with its last weights."""

    def close(self) -> None:
        """Close files, and the progress bar."""


class EventFunction(Callback):
    """Calls `emit` with a dict for each event; see `on_event` of `gpt.api.train`."""

    def __init__(self, emit: OnEvent) -> None:
        self.emit = emit

    def on_plan(self, step: int, steps: int) -> None:
        self.emit({"kind": "plan", "step": step, "steps": steps})

    def on_notice(self, step: int, text: str) -> None:
        self.emit({"kind": "notice", "step": step, "text": text})

    def on_sample(self, step: int, text: str) -> None:
        self.emit({"kind": "sample", "step": step, "text": text})

    def on_evaluation(self, step: int, losses: Mapping[str, float], is_best: bool) -> None:
        self.emit({"kind": "evaluation", "step": step, **losses, "is_best": is_best})

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Emit an event of kind `step`; leave out val losses, which `on_evaluation` emits."""
        if "train_loss" in metrics:
            shown = {name: value for name, value in metrics.items() if name[:3] != "val"}
            self.emit({"kind": "step", "step": step, **shown})

    def on_checkpoint(self, step: int, path: str, is_best: bool) -> None:
        self.emit({"kind": "checkpoint", "step": step, "path": path, "is_best": is_best})
