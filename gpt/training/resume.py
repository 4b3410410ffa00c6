"""A run taken up again from its last intact checkpoint."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from gpt.config.schema import Config, TrainConfig
from gpt.distributed.ranks import Ranks
from gpt.errors import CheckpointError, UsageError, counted
from gpt.files import from_here
from gpt.runs.format import CheckpointData
from gpt.runs.recovery import check_resumable, recover
from gpt.runs.weights import load_model, load_weights
from gpt.text.corpus import Corpus
from gpt.training.build_step import build_step
from gpt.training.ensemble_step import Update
from gpt.training.gradients import threads_each
from gpt.training.progress import Progress
from gpt.training.schedule import learning_rate, rewarm_factor
from gpt.training.teacher import Teacher

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunState:
    """A run in memory: the updates made so far, the model and optimizers, the evaluations."""

    step: int
    update: Update
    progress: Progress
    config: Config | None = None  # that it was saved with; of a new run, None


def resume_from(
    config: Config,
    corpus: Corpus,
    run: Path,
    device: torch.device,
    teacher: Teacher | None,
    ranks: Ranks,
    *,
    adds_minutes: bool = False,
) -> RunState:
    """Return the state to resume training from, with this config.

    With `adds_minutes`, the run is finished, and `train.minutes` is its time from here on: the
    caller plans further steps.

    Raises:
        CheckpointError: no checkpoint is intact, or the last is of something else.
        ConfigError: the config changes what would make it another run.
        UsageError: the text or the teacher differs, or the run is finished.
    """
    data, state = ranks.broadcast(recover, run)
    run = from_here(run)  # from now on it is only named in messages
    with _state_of_this_model(run, data):
        progress = Progress(**state.numbers["progress"])
        _check_can_resume(data, config, progress, state.numbers["text_sha256"], corpus, run)
        if not adds_minutes:
            _check_has_steps(data, config, progress, run)
        _check_teacher(teacher, state.numbers.get("teacher_sha256"), config, run)
        _change_schedule(data, config.train, progress)
        model = load_model(data, device)
        update = build_step(config, model, device, ranks, corpus.train, corpus.vocabulary, teacher)
        update.load_state_dict(state)
        _warn_of_other_digits(update, config, ranks, state.numbers)
    return RunState(data.step, update, progress, data.config)


@contextmanager
def _state_of_this_model(run: Path, data: CheckpointData) -> Iterator[None]:
    """Raises CheckpointError where a training state does not fit what it is loaded into."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise CheckpointError(
            f"{run}/checkpoints/step-{data.step}: its training state is not of this model "
            f"({reason}); start a new run"
        ) from error


def _check_can_resume(
    data: CheckpointData,
    config: Config,
    progress: Progress,
    text_sha256: str,
    corpus: Corpus,
    run: Path,
) -> None:
    check_resumable(data.config, config)
    if text_sha256 != corpus.sha256:
        raise UsageError(
            f"{corpus.name} is not the text that {run} began with, or it has changed since; "
            f"bring the old text back, or start a new run"
        )
    if progress.ended and (reason := progress.early_stop(config.train)):
        raise UsageError(
            f"{run} is finished: at step {data.step}, {reason}; to train for longer, add: "
            f"--set train.stop_at_val_loss=null --set train.patience=null"
        )


def _check_has_steps(data: CheckpointData, config: Config, progress: Progress, run: Path) -> None:
    if data.step >= config.train.steps and progress.pending is None:
        raise UsageError(
            f"{run} is finished: it is at step {data.step} of {config.train.steps}. To train for "
            f"longer, add N minutes with --minutes N, or steps with "
            f"--set train.steps={2 * data.step}"
        )


def _check_teacher(teacher: Teacher | None, sha256: str | None, config: Config, run: Path) -> None:
    if sha256 != (teacher and teacher.sha256):
        raise UsageError(
            f"train.distill {config.train.distill or 'null'} is not what {run} began with, or its "
            f"best checkpoint has changed since; bring the old one back, or start a new run"
        )


def _warn_of_other_digits(
    update: Update, config: Config, ranks: Ranks, numbers: dict[str, Any]
) -> None:
    """Say what differs here from where the checkpoint was written, and changes the last digits."""
    now, before = torch.get_num_threads(), numbers["threads"]
    each_now, each_before = (threads_each(n, config, update.device, ranks) for n in (now, before))
    if update.device.type == "cpu" and each_now != each_before:
        log.warning(
            "threads: computing with %s, where the run had %s: its last digits will differ; "
            "for the same, set threads=%s",
            *(now, before, before),
        )
    precision = str(update.precision).removeprefix("torch.")
    if precision != numbers["precision"]:
        log.warning(
            "precision: computing in %s, where the run had %s: train.precision auto follows "
            "the chip; its losses will differ a little",
            *(precision, numbers["precision"]),
        )


def _change_schedule(data: CheckpointData, config: TrainConfig, progress: Progress) -> None:
    """Where the schedule changes, keep the rate it had, and say from what to what it goes."""
    step, old = data.step, data.config.train
    if not step or (old.steps, old.rewarm_steps) == (config.steps, config.rewarm_steps):
        return
    before = progress.rewarm_rate
    if step != progress.rewarm_step:  # else no step was made since the last change
        before = learning_rate(step - 1, old) * schedule_factor(step - 1, old, progress)
    progress.rewarm_step, progress.rewarm_rate = step, before
    if old.steps != config.steps:
        advice = (
            f"over {counted(config.rewarm_steps, 'step')} (train.rewarm_steps)"
            if config.rewarm_steps
            else "at once; --set train.rewarm_steps=N takes N steps for it"
        )
        log.warning(
            "train.steps changes from %d to %d, and with it the schedule: from step %d to %d the "
            "learning rate goes from %.3g to %.3g, %s",
            *(old.steps, config.steps, step, step + max(1, config.rewarm_steps)),
            before * progress.scale,
            learning_rate(step + max(0, config.rewarm_steps - 1), config) * progress.scale,
            advice,
        )


def schedule_factor(step: int, config: TrainConfig, progress: Progress) -> float:
    """What the schedule's learning rate of a step is multiplied by, rollbacks apart."""
    if progress.rewarm_step is None:
        return 1.0
    return rewarm_factor(step, config, progress.rewarm_step, progress.rewarm_rate)


def roll_back(run: Path, update: Update, ranks: Ranks) -> tuple[int, Progress]:
    """Load the last intact checkpoint of a run into its model and optimizers, in place.

    Raises:
        CheckpointError: no checkpoint is intact.
    """
    data, state = ranks.broadcast(recover, run)
    run = from_here(run)  # from now on it is only named in messages
    with _state_of_this_model(run, data):
        load_weights(update.model, data)
        update.load_state_dict(state)
        return data.step, Progress(**state.numbers["progress"])
