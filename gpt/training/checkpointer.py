"""Write the checkpoints of a run, and advise what to do if a checkpoint cannot be written."""

import math
import shlex
from dataclasses import asdict

import numpy as np

from gpt.config.yaml import to_yaml
from gpt.errors import TrainingError, Unreadable, command
from gpt.evaluation.loss import val_units
from gpt.files import write_atomically
from gpt.runs.format import CheckpointData, TrainingState
from gpt.runs.lock import REPLACED_FOLDER, finish_overwrite
from gpt.runs.weights import weights_of
from gpt.runs.write import write_checkpoint
from gpt.training.members import Update, computed_with
from gpt.training.run_context import Diverged, Progress, RunContext
from gpt.training.schedule import Schedule


class Checkpointer:
    """Writes the checkpoints of a run, on rank 0."""

    def __init__(
        self, context: RunContext, update: Update, schedule: Schedule, saved_at_step: int | None
    ) -> None:
        self.context, self.update, self.schedule = context, update, schedule
        self.saved_at_step = saved_at_step  # step of the newest checkpoint; None if there is none
        self.saved_at = context.clock()

    def is_due_by_clock(self) -> bool:
        """Return whether a checkpoint is due; False if `train.checkpoint_every` is in steps."""
        every = self.context.config.train.checkpoint_every
        if isinstance(every, int):
            return False
        minutes = float(every.removesuffix(" min"))
        return self.saved_at_step is None or self.context.clock() - self.saved_at >= 60 * minutes

    def save(self, step: int, progress: Progress, finished: bool) -> str:
        """Write a checkpoint after `step` steps, and return its path. All ranks must call this.

        Raises:
            Diverged: a weight is NaN or infinite.
            TrainingError: the files cannot be written, for example because the disk is full.
        """
        if not self.context.ranks.broadcast(self._write, step, progress, finished):
            raise Diverged(f"step {step}: weights are NaN or infinite")
        self.saved_at_step, self.saved_at = step, self.context.clock()
        return f"{self.context.name}/checkpoints/step-{step}"

    def _write(self, step: int, progress: Progress, finished: bool) -> bool:
        """Write the checkpoint; if a weight is NaN or infinite, write nothing and return False."""
        context, weights = self.context, weights_of(self.update.model)
        if not all(np.isfinite(array).all() for array in weights.values()):
            return False
        config = self.schedule.stored(context.config)
        data = CheckpointData(
            step=step,
            config=config,
            vocabulary=context.corpus.vocabulary,
            weights=weights,
            val_loss=progress.val_loss,
            best_step=progress.best_step if progress.best_loss < math.inf else None,
            finished=finished,
        )
        try:
            if finished and config.train.minutes is not None:
                repeated = config.changed(train={"minutes": None})  # replaced by `train.plans`
                write_atomically(context.folder / "config.yaml", [to_yaml(repeated).encode()])
            write_checkpoint(context.folder, data, self._state(progress))
        except (OSError, Unreadable) as error:
            options = f"--overwrite --run-dir {shlex.quote(context.name)}"
            is_replacing = (context.folder / REPLACED_FOLDER).exists()
            kept = "the old run is restored" if is_replacing else "it has no checkpoint yet"
            advice = f"{kept}. Make room and start it again with {options}"
            if self.saved_at_step is not None:
                resume = command("train", "--resume", context.name)
                advice = f"its checkpoints are unchanged. Make room and resume with: {resume}"
            if not context.folder.exists():
                advice = "the folder was moved or deleted; if moved, resume it under its new name"
            reason = getattr(error, "strerror", None) or error
            raise TrainingError(
                f"cannot save step {step} in {context.name} ({reason}); {advice}"
            ) from error
        finish_overwrite(context.folder)
        return True

    def _state(self, progress: Progress) -> TrainingState:
        state, corpus = self.update.state_dict(), self.context.corpus
        # losses are infinite before the first evaluation, and JSON has no infinity
        finite = {key: value for key, value in asdict(progress).items() if value != math.inf}
        numbers = state.numbers | computed_with(self.update)
        numbers |= {"progress": finite, "text_sha256": corpus.sha256}
        if progress.val_loss is not None:
            numbers["bits_per_byte"] = val_units(corpus).bits_per_byte(progress.val_loss)
        return TrainingState(state.tensors, numbers)
