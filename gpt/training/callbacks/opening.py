"""Open the callbacks of a run: the metrics file, TensorBoard and the progress bar."""

from collections.abc import Callable
from threading import current_thread, main_thread
from typing import Any

from gpt.training.callbacks.bar import ProgressBar
from gpt.training.callbacks.callback import Callback, EventFunction
from gpt.training.callbacks.jsonl import MetricsFile
from gpt.training.callbacks.tensorboard import TensorBoard
from gpt.training.run_context import RunContext


def open_callbacks(
    context: RunContext,
    on_event: Callable[[dict[str, Any]], object] | None,
    resumed_at: int | None,
    steps: int,
    *,
    pending: bool,
) -> list[Callback]:
    """Open the callbacks of a run on rank 0; return an empty list on other ranks.

    Args:
        context: the settings, text and folder of the run.
        on_event: receives a dict for each event; see `gpt.api.train`.
        resumed_at: the step of the checkpoint that the run resumes from; None for a new run.
        steps: number of steps of the whole run.
        pending: whether the evaluation of step `resumed_at` is repeated.
    """
    if context.ranks.rank > 0:
        return []
    metrics = MetricsFile(context.folder / "metrics.jsonl", resumed_at, pending=pending)
    callbacks: list[Callback] = [metrics, TensorBoard(context, resumed_at, pending=pending)]
    if current_thread() is main_thread():  # bars of several trainings would overlap
        callbacks.append(ProgressBar(steps, resumed_at or 0))
    return [*callbacks, EventFunction(on_event)] if on_event else callbacks
