"""Losses and gradient norms of steps, steps that are skipped, and the rollbacks they cause."""

from collections.abc import Callable

from gpt.errors import TrainingError
from gpt.training.build_step import Update
from gpt.training.evaluator import Diverged, Progress
from gpt.training.step import Result

MAX_UNREAD_STEPS = 10
MAX_SKIPPED_STEPS = 3  # skipped steps in a row that cause a rollback
MAX_ROLLBACKS = 3


class StepResults:
    """The results of the last steps, which an accelerator computes while the CPU continues."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.unread: list[Result] = []

    @property
    def must_be_read(self) -> bool:
        """Whether to read the results now: on one CPU always, elsewhere when there are many."""
        return not self.update.is_ahead or len(self.unread) >= MAX_UNREAD_STEPS

    def read(
        self, step: int, progress: Progress, on_skip: Callable[[int, str], None]
    ) -> tuple[float, float]:
        """Wait for the results, and return the loss and the gradient's norm of the last step.

        For an ensemble, these are means over the members.

        Args:
            step: the number of steps done.
            progress: counts the skipped steps.
            on_skip: called with each step that was skipped and the reason.

        Raises:
            Diverged: `MAX_SKIPPED_STEPS` in a row were skipped.
        """
        first = step - len(self.unread) + 1
        results = self.update.read(self.unread)
        self.unread.clear()
        for each, (losses, norms) in enumerate(results, first):
            reason = self._reason_to_skip(each, losses, norms)
            progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if reason else 0
            if reason:
                on_skip(each, reason)
            if progress.skipped_in_a_row == MAX_SKIPPED_STEPS:
                raise Diverged(f"{reason}, the {MAX_SKIPPED_STEPS}rd such step in a row")
        return sum(losses) / len(losses), sum(norms) / len(norms)

    def _reason_to_skip(self, step: int, losses: list[float], norms: list[float]) -> str:
        """Return why a member skipped its update, by the results of all; empty if none did."""
        results = zip(self.update.members, losses, norms, strict=True)
        failed = [m for m, (member, *result) in enumerate(results) if member.is_failure(*result)]
        if not failed:
            return ""
        m = failed[0]
        whose = f" by member {m + 1} of {len(losses)}" if len(losses) > 1 else ""
        numbers = f"the loss is {losses[m]}, the gradient's norm {norms[m]}"
        return f"step {step} skipped{whose}: {numbers}"


def halve(scale: float, reason: str, run: str) -> float:
    """Return half of the learning rates' `scale`, for a rollback of `run`.

    Raises:
        TrainingError: the run has rolled back `MAX_ROLLBACKS` times.
    """
    if scale / 2 < 2**-MAX_ROLLBACKS:
        raise TrainingError(
            f"{reason}; it rolled back {MAX_ROLLBACKS} times and halved the learning rates each "
            f"time. The checkpoints of {run} are as they were. Start again with a lower "
            f"train.learning_rate, a longer train.warmup_steps, or train.precision fp32"
        )
    return scale / 2
