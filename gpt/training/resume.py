"""A run taken up again from its last intact checkpoint."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from gpt.config.schema import Config
from gpt.errors import CheckpointError, UsageError
from gpt.runs.checkpoint import Checkpoint, load_checkpoint, load_training_state, mend_best
from gpt.runs.folder import check_resumable
from gpt.runs.stored import go_back_to_whole, read_stored
from gpt.text.corpus import Corpus
from gpt.training.progress import Progress
from gpt.training.step import TrainStep

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunState:
    """A run in memory: the updates made so far, the model and optimizers, the evaluations."""

    step: int
    update: TrainStep
    progress: Progress
    config: Config | None = None  # that it was saved with; of a new run, None


def resume_from(config: Config, corpus: Corpus, run: Path, device: torch.device) -> RunState:
    """The state to train on from, with this config.

    Raises:
        CheckpointError: no checkpoint is intact, or the last is of something else.
        ConfigError: the config changes what would make it another run.
        UsageError: the text differs, or the run is finished.
    """
    go_back_to_whole(run)
    checkpoint, state = load_checkpoint(run, "last", device), load_training_state(run)
    try:
        progress = Progress(**state["progress"])
        mend_best(run, progress.best_step)
        _check_can_resume(checkpoint, config, progress, state["text_sha256"], corpus, run)
        update = TrainStep(checkpoint.model, corpus.train, config, device)
        update.load_state_dict(state["step"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{run}/checkpoints/last: its training_state.pt is not of this model ({error}); "
            f"start a new run"
        ) from error
    return RunState(checkpoint.step, update, progress, checkpoint.config)


def _check_can_resume(
    checkpoint: Checkpoint,
    config: Config,
    progress: Progress,
    text_sha256: str,
    corpus: Corpus,
    run: Path,
) -> None:
    check_resumable(checkpoint.config, config)
    if text_sha256 != corpus.sha256:
        raise UsageError(
            f"{corpus.name} is not the text that {run} began with, or it has changed since; "
            f"bring the old text back, or start a new run"
        )
    steps = checkpoint.config.train.steps
    if checkpoint.step >= config.train.steps and progress.pending is None:
        raise UsageError(
            f"{run} is finished: it is at step {checkpoint.step} of {config.train.steps}; "
            f"to train for longer: --set train.steps={2 * checkpoint.step}"
        )
    if progress.ended and (reason := progress.early_stop(config.train)):
        raise UsageError(
            f"{run} is finished: at step {checkpoint.step}, {reason}; to train for longer: "
            f"--set train.stop_at_val_loss=null --set train.patience=null"
        )
    if steps != config.train.steps:
        log.warning(
            "train.steps changes from %d to %d: from here the learning rate follows the longer or "
            "shorter decay, so this is not the run that would have had it from the start",
            *(steps, config.train.steps),
        )


def roll_back(run: Path, update: TrainStep) -> tuple[int, Progress]:
    """Load the last intact checkpoint of a run into its model and optimizers, in place.

    Raises:
        CheckpointError: no checkpoint is intact.
    """
    go_back_to_whole(run)
    stored, state = read_stored(run, "last"), load_training_state(run)
    weights = {name: torch.from_numpy(array) for name, array in stored.weights.items()}
    update.model.load_state_dict(weights)
    update.load_state_dict(state["step"])
    progress = Progress(**state["progress"])
    mend_best(run, progress.best_step)
    return stored.step, progress
