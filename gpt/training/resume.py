"""Continue a run from its last intact checkpoint."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gpt.config.schema import Config
from gpt.errors import CheckpointError, TrainingError, UsageError
from gpt.runs.recovery import check_resumable, recover
from gpt.runs.weights import load_model, load_weights
from gpt.training.build_step import Update, build_step
from gpt.training.evaluator import Progress
from gpt.training.run_context import RunContext
from gpt.training.schedule import Schedule
from gpt.training.teacher import Teacher
from gpt.training.time_budget import Stopwatch, TimeBudget

log = logging.getLogger(__name__)

MAX_ROLLBACKS = 3  # rollbacks of a run, after which divergence ends it


@dataclass(frozen=True)
class RunState:
    """State of a run that starts or resumes.

    Attributes:
        config: the settings to train with.
        step: the number of steps done.
        update: the model and its optimizers.
        saved_config: the settings in the checkpoint; None for a new run.
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
        teacher: the model to distill, if any.
        clock: returns the seconds since the command began.
        extend: whether to continue even a finished run, for `train.minutes` more if that is set.

    Raises:
        CheckpointError: no checkpoint is intact, or the last one does not fit the model.
        ConfigError: the config changes a setting that must stay the same in a run.
        UsageError: the text or the teacher differs, or the run is finished.
    """
    config, corpus, ranks = context.config, context.corpus, context.ranks
    data, state = ranks.broadcast(recover, context.folder)
    check_resumable(data.config, config)
    try:
        progress = Progress(**state.numbers["progress"])
        _check_sources(context, teacher, state.numbers)
        if not extend:
            _check_not_finished(context, data.step, progress)
        model = load_model(data, device)
        update = build_step(
            config, model, device, ranks, context.network_ids, corpus.vocabulary, teacher
        )
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
        whole = progress.elapsed_s / 60 + minutes
        train = config.train.model_copy(update={"minutes": whole})
        config = config.model_copy(update={"train": train})
    stopwatch, schedule = Stopwatch(clock), Schedule(config)
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
    """Load the last intact checkpoint of a run into `update`, and halve the learning rates.

    Return the step of the checkpoint, and its losses and counters.

    Raises:
        CheckpointError: no checkpoint is intact.
        TrainingError: this was already done `MAX_ROLLBACKS` times; the message begins with
            `reason`.
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


def _check_sources(context: RunContext, teacher: Teacher | None, saved: dict[str, Any]) -> None:
    """Raise UsageError if the text or the model to distill differs from the one in `saved`."""
    corpus, distill = context.corpus, context.config.train.distill
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
    """Raise UsageError if the run has made all its steps, or early stopping has ended it."""
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
    """Warn if threads or precision differ from those in `saved`, the state of a checkpoint.

    Other threads or precision change the last digits of losses.
    """
    precision = str(update.precision).removeprefix("torch.")
    for name, now in (("threads", torch.get_num_threads()), ("precision", precision)):
        if now != saved[name]:
            log.warning(
                "%s: computing with %s, where the run had %s: its last digits may differ",
                *(name, now, saved[name]),
            )
