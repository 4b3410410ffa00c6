"""Handle steps with NaN, which are skipped: after several in a row, roll the run back.

A step diverges if its loss or its gradient is NaN or infinite. `TrainStep.update_weights` skips
such a step, in an ensemble only for the affected members. After MAX_SKIPPED_STEPS in a row, the run
rolls back to its last checkpoint and continues with half the learning rates.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from gpt.errors import TrainingError, setting_arguments
from gpt.runs.recovery import recover
from gpt.runs.weights import load_weights
from gpt.training.float16 import LossScaler
from gpt.training.members import AnyStep
from gpt.training.run_context import RunContext
from gpt.training.run_state import Progress

MAX_SKIPPED_STEPS = 3  # number of skipped steps in a row that causes a rollback
MAX_ROLLBACKS = 3  # largest number of rollbacks in a run; the next divergence ends it


class Diverged(Exception):
    """The loss, the gradient or a weight is NaN or infinite. The message names the step."""


def count_skipped(
    train_step: AnyStep,
    results: list[list[list[float]]],
    step: int,
    skipped: int,
    on_skip: Callable[[int, str], None],
) -> int:
    """Return how many steps in a row, up to `step`, were skipped; raise Diverged if too many.

    `results` are losses and gradient norms of the newest steps, oldest first; see `TrainStep.read`.
    Before them, `skipped` steps in a row were skipped. `on_skip` is called with the number of each
    skipped step, and the reason.
    """
    for number, (losses, norms) in enumerate(results, step - len(results) + 1):
        results_of_members = zip(train_step.members, losses, norms, strict=True)
        failures = [is_failure(each.scaler, loss, norm) for each, loss, norm in results_of_members]
        if not any(failures):
            skipped = 0
            continue
        skipped += 1
        m = failures.index(True)
        whose = f" by member {m + 1} of {len(losses)}" if len(losses) > 1 else ""
        numbers = f"the loss is {losses[m]}, the gradient's norm {norms[m]}"
        reason = f"step {number} skipped{whose}: {numbers}"
        on_skip(number, reason)
        if skipped == MAX_SKIPPED_STEPS:
            raise Diverged(f"{reason}; {MAX_SKIPPED_STEPS} such steps in a row")
    return skipped


def is_failure(scaler: LossScaler, loss: float, norm: float) -> bool:
    """Return whether the `loss` or the gradient's `norm` of a step is NaN or infinite.

    While gradients of float16 may overflow, ignore `norm`.
    """
    return not (math.isfinite(loss) and (scaler.may_overflow or math.isfinite(norm)))


def restore_last(
    context: RunContext, train_step: AnyStep, scale: float, reason: str
) -> tuple[int, Progress]:
    """Load the last intact checkpoint into `train_step`.

    Return the step of the checkpoint, and its progress with half of `scale`, the present factor of
    the learning rates. Raise TrainingError if the run has already rolled back MAX_ROLLBACKS times;
    the error's message begins with `reason`.
    """
    if scale <= 2**-MAX_ROLLBACKS:
        raise TrainingError(
            f"{reason}; the run rolled back {MAX_ROLLBACKS} times. The checkpoints of "
            f"{context.name} are unchanged. Start again with a lower train.learning_rate, or "
            f"{setting_arguments('train.precision=fp32')}"
        )
    data, state = context.ranks.broadcast(recover, context.folder)
    load_weights(train_step.model, data)
    train_step.load_state_dict(state)
    progress = Progress(**state.numbers["progress"])
    return data.step, replace(progress, scale=scale / 2, skipped_in_a_row=0)
