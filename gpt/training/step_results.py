"""Losses and gradient norms of steps, and the steps that are skipped."""

import math
from collections.abc import Callable

from gpt.training.build_step import Update
from gpt.training.evaluator import Diverged, Progress
from gpt.training.step import Result

MAX_SKIPPED_STEPS = 3  # skipped steps in a row that end training


def read_results(
    update: Update,
    unread: list[Result],
    step: int,
    progress: Progress,
    on_skip: Callable[[int, str], None],
) -> dict[str, float]:
    """Wait for the results of the last steps; return the loss and gradient norm of the newest.

    For an ensemble, these are means over the members. NaN and infinite ones are left out.

    Args:
        update: has made the steps.
        unread: their results, which are removed.
        step: the number of steps done.
        progress: counts the skipped steps.
        on_skip: called with each step that was skipped and the reason.

    Raises:
        Diverged: `MAX_SKIPPED_STEPS` in a row were skipped.
    """
    first, results = step - len(unread) + 1, update.read(unread)
    unread.clear()
    for each, (losses, norms) in enumerate(results, first):
        members = zip(update.members, losses, norms, strict=True)
        failed = [m for m, (member, *result) in enumerate(members) if member.is_failure(*result)]
        progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if failed else 0
        if failed:
            m = failed[0]
            whose = f" by member {m + 1} of {len(losses)}" if len(losses) > 1 else ""
            numbers = f"the loss is {losses[m]}, the gradient's norm {norms[m]}"
            reason = f"step {each} skipped{whose}: {numbers}"
            on_skip(each, reason)
            if progress.skipped_in_a_row == MAX_SKIPPED_STEPS:
                raise Diverged(f"{reason}, the {MAX_SKIPPED_STEPS}rd such step in a row")
    newest = {"train_loss": sum(losses) / len(losses), "grad_norm": sum(norms) / len(norms)}
    return {name: value for name, value in newest.items() if math.isfinite(value)}
