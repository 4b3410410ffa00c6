"""Write the checkpoints of a run, and advise what to do if a checkpoint cannot be written.

`Checkpointer.is_due` explains when a checkpoint is due, and `gpt.runs.prune` which ones are kept.
"""

import math
from dataclasses import asdict

import numpy as np

from gpt.errors import TrainingError, Unreadable, arguments, resume_command
from gpt.evaluation.loss import val_units
from gpt.runs.format import CheckpointData, TrainingState
from gpt.runs.lock import REPLACED_FOLDER, finish_overwrite
from gpt.runs.weights import weights_of
from gpt.runs.write import write_checkpoint, write_config
from gpt.training.members import AnyStep, computed_with
from gpt.training.rollback import Diverged
from gpt.training.run_context import RunContext
from gpt.training.run_state import CurrentStep, Progress
from gpt.training.schedule import Schedule


class Checkpointer:
    """Writes the checkpoints of a run, on rank 0."""

    def __init__(
        self,
        context: RunContext,
        train_step: AnyStep,
        schedule: Schedule,
        saved_at_step: int | None,
    ) -> None:
        self.context, self.train_step, self.schedule = context, train_step, schedule
        self.saved_at_step = saved_at_step  # step of the newest checkpoint; None if there is none
        self.saved_at = context.clock()

    def is_due_by_clock(self) -> bool:
        """Return whether a checkpoint is due; False if `train.checkpoint_every` is in steps."""
        minutes = self.context.config.train.checkpoint_every.minutes
        if minutes is None:
            return False
        return self.saved_at_step is None or self.context.clock() - self.saved_at >= 60 * minutes

    def is_due(self, now: CurrentStep, progress: Progress, *, by_clock: bool) -> bool:
        """Return whether to save a checkpoint of the step `now`.

        A checkpoint is due every `train.checkpoint_every` (for a period in minutes, if `by_clock`),
        but not while steps are skipped. It is always due at the best step and at the end. If the
        step was saved before its evaluation, it is saved again.
        """
        is_outdated = self.saved_at_step == now.step
        if now.is_best or now.reason_to_stop or is_outdated:
            return True
        every = self.context.config.train.checkpoint_every
        is_stable = not progress.skipped_in_a_row
        return is_stable and (by_clock or self.schedule.is_due(now.step, every))

    def save(self, now: CurrentStep, progress: Progress) -> str:
        """Write a checkpoint of the step `now`, and return its path. All ranks must call this.

        Raises:
            Diverged: a weight is NaN or infinite.
            TrainingError: the files cannot be written, for example because the disk is full.
        """
        if not self.context.ranks.broadcast(self._write, now, progress):
            raise Diverged(f"step {now.step}: weights are NaN or infinite")
        self.saved_at_step, self.saved_at = now.step, self.context.clock()
        return f"{self.context.name}/checkpoints/step-{now.step}"

    def _write(self, now: CurrentStep, progress: Progress) -> bool:
        """Write the checkpoint; if a weight is NaN or infinite, write nothing and return False."""
        context, weights = self.context, weights_of(self.train_step.model)
        is_finished = bool(now.reason_to_stop)
        if not all(np.isfinite(array).all() for array in weights.values()):
            return False
        config = self.schedule.stored(context.config)
        data = CheckpointData(
            step=now.step,
            config=config,
            vocabulary=context.corpus.vocabulary,
            weights=weights,
            val_loss=progress.val_loss,
            best_step=progress.best_step if progress.best_loss < math.inf else None,
            finished=is_finished,
        )
        try:
            if is_finished and config.train.minutes is not None:
                write_config(context.folder, config.changed(train={"minutes": None}))
            write_checkpoint(context.folder, data, self._state(progress))
        except (OSError, Unreadable) as error:
            options = arguments(overwrite=True, run_dir=context.name)
            is_replacing = (context.folder / REPLACED_FOLDER).exists()
            kept = "the old run is restored" if is_replacing else "it has no checkpoint yet"
            advice = f"{kept}. Make room and start it again with {options}"
            if self.saved_at_step is not None:
                resume = resume_command(context.name)
                advice = f"its checkpoints are unchanged. Make room and resume with: {resume}"
            if not context.folder.exists():
                advice = "the folder was moved or deleted; if moved, resume it under its new name"
            reason = getattr(error, "strerror", None) or error
            raise TrainingError(
                f"cannot save step {now.step} in {context.name} ({reason}); {advice}"
            ) from error
        finish_overwrite(context.folder)
        return True

    def _state(self, progress: Progress) -> TrainingState:
        state, corpus = self.train_step.state_dict(), self.context.corpus
        # losses are infinite before the first evaluation, and JSON has no infinity
        finite = {key: value for key, value in asdict(progress).items() if value != math.inf}
        numbers = state.numbers | computed_with(self.train_step)
        numbers |= {"progress": finite, "text_sha256": corpus.sha256}
        if progress.val_loss is not None:
            numbers["bits_per_byte"] = val_units(corpus).bits_per_byte(progress.val_loss)
        return TrainingState(state.tensors, numbers)
