"""The callbacks of a run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from threading import current_thread, main_thread
from typing import Any

from gpt.training.callbacks.bar import ProgressBar
from gpt.training.callbacks.callback import Callback, EventFunction
from gpt.training.callbacks.jsonl import MetricsFile
from gpt.training.callbacks.tensorboard import TensorBoard
from gpt.training.run_context import RunContext


@contextmanager
def opened_callbacks(
    context: RunContext,
    resumed_at: int | None,
    pending: bool,
    steps: int,
    on_event: Callable[[dict[str, Any]], object] | None,
) -> Iterator[list[Callback]]:
    """Open the callbacks of rank 0, and close them at the end. Other ranks have none.

    Args:
        context: the settings, text and folder of the run.
        resumed_at: the step of the checkpoint that the run continues from, if it does.
        pending: whether the evaluation of that step is repeated.
        steps: the planned number of steps.
        on_event: see `gpt.api.train`.
    """
    with ExitStack() as stack:
        callbacks = list[Callback]()
        if context.ranks.rank == 0:
            metrics = context.folder / "metrics.jsonl"
            callbacks += [
                stack.enter_context(closing(MetricsFile(metrics, resumed_at, pending=pending))),
                stack.enter_context(closing(TensorBoard(context, resumed_at, pending=pending))),
            ]
            if current_thread() is main_thread():  # bars of several trainings would overlap
                callbacks.append(stack.enter_context(closing(ProgressBar(steps, resumed_at or 0))))
            if on_event:
                callbacks.append(EventFunction(on_event))
        yield callbacks
