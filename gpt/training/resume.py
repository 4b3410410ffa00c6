"""Continue a run from its last intact checkpoint."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch

from gpt.config.schema import Config
from gpt.errors import CheckpointError, TrainingError, UsageError
from gpt.runs.recovery import check_resumable, recover
from gpt.runs.weights import load_model, load_weights
from gpt.training.build_step import Update, step_of
from gpt.training.evaluator import Progress
from gpt.training.run_context import RunContext
from gpt.training.schedule import Schedule
from gpt.training.time_budget import Stopwatch, TimeBudget

log = logging.getLogger(__name__)

MAX_ROLLBACKS = 3  # rollbacks of a run, after which divergence ends it


@dataclass(frozen=True)
class RunState:
    """State of a run that starts or resumes."""

    config: Config  # to train with
    step: int  # number of steps done
    update: Update
    schedule: Schedule
    budget: TimeBudget
    progress: Progress
    saved_config: Config | None = None  # the settings in the checkpoint; None for a new run


def resume_from(context: RunContext, *, extend: bool) -> RunState:
    """Load the last checkpoint of a run to train it with `context.config`.

    With `extend`, continue even a finished run, for `train.minutes` more if that is set. Raise
    UsageError if the text or the teacher differs, CheckpointError if the checkpoint does not fit.
    """
    config, corpus, ranks = context.config, context.corpus, context.ranks
    data, state = ranks.broadcast(recover, context.folder)
    check_resumable(data.config, config)
    try:
        progress = Progress(**state.numbers["progress"])
        _check_sources(context, state.numbers)
        if not extend:
            _check_not_finished(context, data.step, progress)
        update = step_of(context, load_model(data, context.device))
        update.load_state_dict(state)
        _warn_of_other_digits(update, state.numbers)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CheckpointError(
            f"{context.name}/checkpoints/step-{data.step}: its training state is not of this model "
            f"({' '.join(str(error).split()):.200}); start a new run"
        ) from error
    minutes = config.train.minutes
    is_new_time = minutes is not None and (extend or minutes != data.config.train.minutes)
    if extend and minutes is not None:
        config = config.changed(train={"minutes": progress.elapsed_s / 60 + minutes})
    stopwatch, schedule = Stopwatch(context.clock), Schedule(config)
    schedule.scale = progress.scale
    if minutes is not None:
        stopwatch.probe(update.probe, update, replace(context, config=config), data.step)
    budget = TimeBudget(config, corpus.val, stopwatch, progress.elapsed_s)
    if is_new_time:
        used_s, limit_s = budget.used_s, budget.limit_s
        log.info("the run has used %.2g of %.2g minutes", used_s / 60, limit_s / 60)
        schedule.replan(data.step, data.step + 1)
        schedule.replan(data.step, ranks.broadcast(budget.first_end, schedule, data.step))
    update.follow(schedule)
    return RunState(config, data.step, update, schedule, budget, progress, data.config)


def restore_last(
    context: RunContext, update: Update, schedule: Schedule, reason: str
) -> tuple[int, Progress]:
    """Load the last intact checkpoint, and halve the learning rates.

    Args:
        context: the settings, text and folder of the run.
        update: the model and its optimizers, to restore.
        schedule: has the factor of the learning rates.
        reason: why the run rolls back; TrainingError repeats it after MAX_ROLLBACKS rollbacks.

    Returns:
        The step of the checkpoint, and its losses and counters.
    """
    if schedule.scale <= 2**-MAX_ROLLBACKS:
        raise TrainingError(
            f"{reason}; it rolled back {MAX_ROLLBACKS} times. The checkpoints of {context.name} "
            f"are as they were. Start again with a lower train.learning_rate, or train.precision "
            f"fp32"
        )
    schedule.scale /= 2
    data, state = context.ranks.broadcast(recover, context.folder)
    load_weights(update.model, data)
    update.load_state_dict(state)
    progress = Progress(**state.numbers["progress"])
    progress.scale, progress.skipped_in_a_row = schedule.scale, 0
    return data.step, progress


def _check_sources(context: RunContext, saved: dict[str, Any]) -> None:
    corpus, teacher, distill = context.corpus, context.teacher, context.config.train.distill
    for what, name, before, now in (
        ("text", corpus.name, saved["text_sha256"], corpus.sha256),
        ("teacher", distill, saved.get("teacher_sha256"), teacher and teacher.sha256),
    ):
        if now != before:
            raise UsageError(
                f"{name} is not the {what} that {context.name} began with, or it has changed "
                f"since; bring the old one back, or start a new run"
            )


def _check_not_finished(context: RunContext, step: int, progress: Progress) -> None:
    train = context.config.train
    if progress.ended and (reason := progress.early_stop(train)):
        advice = "--set train.stop_at_val_loss=null --set train.patience=null"
    elif step >= train.steps and progress.pending is None:
        reason = "all steps done"
        advice = f"N minutes with --minutes N, or steps with --set train.steps={2 * step}"
    else:
        return
    raise UsageError(
        f"{context.name} is finished: {reason}, at step {step} of {train.steps}. To train for "
        f"longer, add {advice}"
    )


def _warn_of_other_digits(update: Update, saved: dict[str, Any]) -> None:
    precision = str(update.precision).removeprefix("torch.")
    for name, now in (("threads", torch.get_num_threads()), ("precision", precision)):
        if now != saved[name]:
            message = "%s: computing with %s, where the run had %s: its last digits may differ"
            log.warning(message, name, now, saved[name])
