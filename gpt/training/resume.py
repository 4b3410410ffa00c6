"""Continue a run from its last intact checkpoint."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from gpt.config.schema import Config
from gpt.distributed.ranks import Ranks
from gpt.errors import CheckpointError, UsageError, counted
from gpt.files import from_here
from gpt.runs.format import CheckpointData, TrainingState
from gpt.runs.recovery import check_resumable, recover
from gpt.runs.weights import load_model, load_weights
from gpt.training.build_step import Update, build_step
from gpt.training.evaluator import Progress
from gpt.training.gradients import threads_each
from gpt.training.run_context import RunContext
from gpt.training.schedule import Schedule
from gpt.training.teacher import Teacher
from gpt.training.time_budget import Stopwatch, TimeBudget

log = logging.getLogger(__name__)

OLD_PROGRESS = ("rewarm_step", "rewarm_rate")  # keys of older versions, without an effect now


@dataclass(frozen=True)
class RunState:
    """A run in memory.

    Attributes:
        config: the settings to train with.
        step: the number of steps done.
        saved_config: the settings of the checkpoint; None for a new run.
    """

    config: Config
    step: int
    update: Update
    schedule: Schedule
    budget: TimeBudget
    progress: Progress
    saved_config: Config | None = None


def resume_from(
    context: RunContext,
    device: torch.device,
    teacher: Teacher | None,
    clock: Callable[[], float],
    extend: bool,
) -> RunState:
    """Load the last checkpoint of a run to train it with `context.config`.

    Args:
        context: the settings, text and folder of the run.
        device: the device to train on.
        teacher: the model of `train.distill`, if that is set.
        clock: returns the seconds since the command began.
        extend: whether the run is finished and `train.minutes` is the time for further steps.

    Raises:
        CheckpointError: no checkpoint is intact, or the last one is of another model.
        ConfigError: the config changes what would make it another run.
        UsageError: the text or the teacher differs, or the run is finished.
    """
    config, corpus, ranks = context.config, context.corpus, context.ranks
    data, state = ranks.broadcast(recover, context.folder)
    with _fitting_state(context.folder, data):
        progress = _progress_of(state)
        _check_can_resume(context, data, progress, state.numbers, teacher)
        if not extend and data.step >= config.train.steps and progress.pending is None:
            raise UsageError(
                f"{context.name} is finished: it is at step {data.step} of {config.train.steps}. "
                f"To train for longer, add N minutes with --minutes N, or steps with --set "
                f"train.steps={2 * data.step}"
            )
        model = load_model(data, device)
        update = build_step(config, model, device, ranks, corpus.train, corpus.vocabulary, teacher)
        update.load_state_dict(state)
        _warn_of_other_digits(update, config, ranks, state.numbers)
    if extend and config.train.minutes is not None:
        minutes = progress.elapsed_s / 60 + config.train.minutes
        train = config.train.model_copy(update={"minutes": minutes})
        config = config.model_copy(update={"train": train})
    stopwatch, schedule = Stopwatch(clock), Schedule(config)
    schedule.scale = progress.scale
    if config.train.minutes is not None:
        stopwatch.probe(update, corpus.val, config, ranks)
    budget = TimeBudget(config, corpus.val, stopwatch, progress.elapsed_s)
    resumed = RunState(config, data.step, update, schedule, budget, progress, data.config)
    _change_plan(context, resumed, extend)
    update.follow(schedule)
    return resumed


def roll_back(context: RunContext, update: Update) -> tuple[int, Progress]:
    """Load the last intact checkpoint of a run into its model and optimizers, in place.

    Raises:
        CheckpointError: no checkpoint is intact.
    """
    data, state = context.ranks.broadcast(recover, context.folder)
    with _fitting_state(context.folder, data):
        load_weights(update.model, data)
        update.load_state_dict(state)
        return data.step, _progress_of(state)


def _progress_of(state: TrainingState) -> Progress:
    saved = state.numbers["progress"]
    return Progress(**{key: value for key, value in saved.items() if key not in OLD_PROGRESS})


@contextmanager
def _fitting_state(folder: Path, data: CheckpointData) -> Iterator[None]:
    """Raise CheckpointError if a training state does not fit the model it is loaded into."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise CheckpointError(
            f"{from_here(folder)}/checkpoints/step-{data.step}: its training state is not of this "
            f"model ({reason}); start a new run"
        ) from error


def _check_can_resume(
    context: RunContext,
    data: CheckpointData,
    progress: Progress,
    saved: dict[str, Any],
    teacher: Teacher | None,
) -> None:
    """Raise UsageError or ConfigError if the checkpoint is of another run or had enough steps."""
    config, name = context.config, context.name
    check_resumable(data.config, config)
    if saved["text_sha256"] != context.corpus.sha256:
        raise UsageError(
            f"{context.corpus.name} is not the text that {name} began with, or it has changed "
            f"since; bring the old text back, or start a new run"
        )
    if progress.ended and (reason := progress.early_stop(config.train)):
        raise UsageError(
            f"{name} is finished: at step {data.step}, {reason}; to train for longer, add: "
            f"--set train.stop_at_val_loss=null --set train.patience=null"
        )
    if saved.get("teacher_sha256") != (teacher and teacher.sha256):
        raise UsageError(
            f"train.distill {config.train.distill or 'null'} is not what {name} began with, or its "
            f"best checkpoint has changed since; bring the old one back, or start a new run"
        )


def _warn_of_other_digits(
    update: Update, config: Config, ranks: Ranks, saved: dict[str, Any]
) -> None:
    """Warn if the number of threads or the precision differs, which changes the last digits."""
    now, before = torch.get_num_threads(), saved["threads"]
    each_now, each_before = (threads_each(n, config, update.device, ranks) for n in (now, before))
    if update.device.type == "cpu" and each_now != each_before:
        log.warning(
            "threads: computing with %s, where the run had %s: its last digits will differ; "
            "for the same, set threads=%s",
            *(now, before, before),
        )
    precision = str(update.precision).removeprefix("torch.")
    if precision != saved["precision"]:
        log.warning(
            "precision: computing in %s, where the run had %s: train.precision auto follows "
            "the chip; its losses will differ a little",
            *(precision, saved["precision"]),
        )


def _change_plan(context: RunContext, state: RunState, extend: bool) -> None:
    """Log a new number of steps or minutes; plan further steps for a finished run.

    Raises:
        UsageError: there is no time for a step.
    """
    assert state.saved_config is not None
    schedule, budget, step = state.schedule, state.budget, state.step
    given, before = context.config.train.minutes, state.saved_config.train
    schedule_before = Schedule(state.saved_config)
    schedule_before.scale = schedule.scale
    last_rate = schedule_before.lr(step - 1)
    if step and before.steps != schedule.steps:
        log.warning(
            "train.steps changes from %d to %d: from step %d to %d the learning rate goes from "
            "%.3g to %.3g, at once",
            *(before.steps, schedule.steps, step, step + 1, last_rate, schedule.lr(step)),
        )
    if given is None or state.config.train.minutes == before.minutes:
        return
    if not extend:
        used = state.progress.elapsed_s / 60
        if budget.remaining_s <= 0:
            raise UsageError(
                f"{context.name}: train.minutes of a run that is not finished is the time of the "
                f"whole run. It has used {used:.2g} minutes; expected more than that and the start "
                f"of this command, got {given:g}. Use --minutes with a larger number, or leave it "
                f"out"
            )
        log.info(
            "%s is not finished: --minutes %g is the time of the whole run, which has used %.2g",
            *(context.name, given, used),
        )
    elif step >= before.steps:
        end = context.ranks.broadcast(budget.later_phase, schedule, step)
        schedule.replan(step, end)
        rise = schedule.rise_steps(step, end)
        log.info(
            "%s is finished: training for %g more minutes, about %s; the learning rate goes "
            "from %.2g to %.2g in %s, then down again",
            *(context.name, given, counted(end - step, "more step"), last_rate),
            *(schedule.lr(min(step + rise, end) - 1), counted(rise, "step")),
        )
    budget.check_soon(schedule, step)
