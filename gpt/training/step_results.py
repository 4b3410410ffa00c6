"""Read the losses and gradient norms of training steps, and count steps that were skipped."""

import math
from collections.abc import Callable, Sequence

from gpt.training.build_step import Update
from gpt.training.evaluator import Diverged, Progress
from gpt.training.step import Result

MAX_SKIPPED_STEPS = 3  # skipped steps in a row that cause a rollback


def read_results(
    update: Update,
    unread: Sequence[Result],
    step: int,
    progress: Progress,
    on_skip: Callable[[int, str], None],
) -> dict[str, float]:
    """Wait for the results of the last steps, and count skipped steps (loss or norm not finite).

    Args:
        update: the model and its optimizers, which made the steps.
        unread: the results of the newest steps, up to step `step`.
        step: number of steps done.
        progress: counts the skipped steps in a row; MAX_SKIPPED_STEPS of them raise Diverged.
        on_skip: called with the number of each skipped step, and the reason.

    Returns:
        `train_loss` and `grad_norm` of the newest step (means over an ensemble), if finite.
    """
    results = update.read(list(unread))
    for done, (losses, norms) in enumerate(results, step - len(results) + 1):
        members = zip(update.members, losses, norms, strict=True)
        failed = [m for m, (member, *result) in enumerate(members) if member.is_failure(*result)]
        progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if failed else 0
        for m in failed[:1]:
            whose = f" by member {m + 1} of {len(losses)}" if len(losses) > 1 else ""
            numbers = f"the loss is {losses[m]}, the gradient's norm {norms[m]}"
            reason = f"step {done} skipped{whose}: {numbers}"
            on_skip(done, reason)
            if progress.skipped_in_a_row == MAX_SKIPPED_STEPS:
                raise Diverged(f"{reason}, the {MAX_SKIPPED_STEPS}rd such step in a row")
    newest = {"train_loss": sum(losses) / len(losses), "grad_norm": sum(norms) / len(norms)}
    return {name: value for name, value in newest.items() if math.isfinite(value)}
