"""Divergence: the loss or the gradient of a step is NaN or infinite.

Such a step is skipped. After MAX_SKIPPED_STEPS in a row, the run rolls back to its last checkpoint
and continues with half the learning rates.
"""

import math
from collections.abc import Callable, Sequence

from gpt.errors import TrainingError
from gpt.runs.recovery import recover
from gpt.runs.weights import load_weights
from gpt.training.build_step import Update
from gpt.training.evaluator import Diverged, Progress
from gpt.training.run_context import RunContext
from gpt.training.schedule import Schedule
from gpt.training.step import StepResult

MAX_SKIPPED_STEPS = 3  # in a row
MAX_ROLLBACKS = 3  # largest number of rollbacks in a run; the next divergence ends it


def read_results(
    update: Update,
    unread: Sequence[StepResult],
    step: int,
    progress: Progress,
    on_skip: Callable[[int, str], None],
) -> dict[str, float]:
    """Wait for the results `unread` of the last steps, oldest first, and count skipped steps.

    `step` is the number of steps done, including those in `unread`. `on_skip` is called with the
    number of each skipped step, and the reason.

    Returns:
        `train_loss` and `grad_norm` of the newest step (means over an ensemble), if finite.

    Raises:
        Diverged: MAX_SKIPPED_STEPS steps in a row were skipped.
    """
    results = update.read(list(unread))
    for number, (losses, norms) in enumerate(results, step - len(results) + 1):
        members = enumerate(zip(update.members, losses, norms, strict=True))
        failed = [m for m, (member, *result) in members if member.scaler.is_failure(*result)]
        if not failed:
            progress.skipped_in_a_row = 0
            continue
        progress.skipped_in_a_row += 1
        m = failed[0]
        whose = f" by member {m + 1} of {len(losses)}" if len(losses) > 1 else ""
        numbers = f"the loss is {losses[m]}, the gradient's norm {norms[m]}"
        reason = f"step {number} skipped{whose}: {numbers}"
        on_skip(number, reason)
        if progress.skipped_in_a_row == MAX_SKIPPED_STEPS:
            raise Diverged(f"{reason}; {MAX_SKIPPED_STEPS} such steps in a row")
    newest = {"train_loss": sum(losses) / len(losses), "grad_norm": sum(norms) / len(norms)}
    return {name: value for name, value in newest.items() if math.isfinite(value)}


def restore_last(
    context: RunContext, update: Update, schedule: Schedule, reason: str
) -> tuple[int, Progress]:
    """Load the last intact checkpoint into `update`, and halve the learning rates of `schedule`.

    Return the step of the checkpoint, and its losses and counters. Raise TrainingError if the run
    has already rolled back MAX_ROLLBACKS times. Its message begins with `reason`.
    """
    if schedule.scale <= 2**-MAX_ROLLBACKS:
        raise TrainingError(
            f"{reason}; the run rolled back {MAX_ROLLBACKS} times. The checkpoints of "
            f"{context.name} are unchanged. Start again with a lower train.learning_rate, or "
            f"train.precision fp32"
        )
    schedule.scale /= 2
    data, state = context.ranks.broadcast(recover, context.folder)
    load_weights(update.model, data)
    update.load_state_dict(state)
    progress = Progress(**state.numbers["progress"])
    progress.scale, progress.skipped_in_a_row = schedule.scale, 0
    return data.step, progress
