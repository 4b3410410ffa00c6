"""Load a run to resume it: check that the run can continue, and plan the steps that remain."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

from gpt.config.schema import SETTINGS, Config, values
from gpt.config.yaml import differences
from gpt.errors import (
    CheckpointError,
    ConfigError,
    UsageError,
    arguments,
    command,
    setting_arguments,
)
from gpt.runs.format import CheckpointData
from gpt.runs.recovery import recover
from gpt.runs.weights import load_model
from gpt.training.evaluator import early_stop
from gpt.training.members import AnyStep, build_step, computed_with
from gpt.training.run_context import RunContext
from gpt.training.run_state import Progress, StartingPoint
from gpt.training.schedule import Schedule
from gpt.training.stopwatch import Stopwatch
from gpt.training.time_budget import TimeBudget

log = logging.getLogger(__name__)

RISE_TO_ANNOUNCE = 1.2  # a resume logs a message if the learning rate rises by a larger factor


def resumed_run(context: RunContext, *, extend: bool) -> StartingPoint:
    """Load the run's last checkpoint, to continue the run with the settings `context.config`.

    With `extend`, a finished run can continue, too, and `train.minutes` comes on top of the
    time used so far. Raise ConfigError, UsageError or CheckpointError if the run cannot continue.
    """
    data, state = context.ranks.broadcast(recover, context.folder)
    with _refusing_other_state(context, data.step):
        progress = Progress(**state.numbers["progress"])
        before = {name: state.numbers[name] for name in ("threads", "precision")}
    if context.corpus.sha256 != data.text_sha256:
        raise UsageError(
            f"{context.corpus.name} is not the text that {context.name} began with, or it has "
            f"changed since; restore the text, name another run, or start a new run"
        )
    _check_not_finished(context, data.step, progress, extend=extend)
    _check_settings(data.config, context.config)
    with _refusing_other_state(context, data.step):
        model = load_model(data, context.device)
        train_step = build_step(
            context.config, model, context.device, context.ranks, context.corpus.train
        )
        train_step.load_state_dict(state)
    for name, now in computed_with(train_step).items():
        if now != before[name]:
            message = "%s: computing with %s, where the run had %s; its losses may differ slightly"
            log.warning(message, name, now, before[name])
    config, schedule, budget = _resumed_plan(context, data, train_step, progress, extend=extend)
    train_step.use_schedule(schedule)
    _announce_rates(Schedule(data.config), schedule, data.step)
    return StartingPoint(config, data.step, train_step, schedule, budget, progress, data.config)


@contextmanager
def _refusing_other_state(context: RunContext, step: int) -> Iterator[None]:
    """If the `with` block fails to load a training state, raise CheckpointError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = " ".join(str(error).split()).partition(" For further information")[0]  # drop links
        raise CheckpointError(
            f"{context.name}/checkpoints/step-{step}: its training state does not fit this model "
            f"({reason:.200}); start a new run"
        ) from error


def _resumed_plan(
    context: RunContext,
    data: CheckpointData,
    train_step: AnyStep,
    progress: Progress,
    *,
    extend: bool,
) -> tuple[Config, Schedule, TimeBudget]:
    """Return the config, schedule and budget of a resume; plan anew if `train.minutes` is new.

    A new value of `train.steps` also becomes a plan, so that the stored config repeats the run.
    """
    config, val, ranks = context.config, context.corpus.val, context.ranks
    before, minutes = data.config.train, config.train.minutes
    has_steps_left = data.step < (config.train.max_steps or math.inf)
    is_new_time = minutes is not None and (extend or minutes != before.minutes) and has_steps_left
    if extend and minutes is not None:
        config = config.changed(train={"minutes": progress.elapsed_s / 60 + minutes})
    stopwatch, schedule = Stopwatch(context.clock, warmup=train_step.warmup), Schedule(config)
    schedule.lr_scale = progress.scale
    if minutes is not None:
        stopwatch.probe(train_step.probe, train_step, config, val, ranks)
    elif not config.train.plans and (before.plans or before.steps != config.train.steps):
        schedule.plans = before.plans or ((0, before.steps),)
        schedule.replan(data.step, config.train.steps)
    budget = TimeBudget(config.train.minutes, len(val) - 1, stopwatch, progress.elapsed_s)
    if is_new_time:
        used_s, limit_s = budget.used_s, budget.limit_s
        log.info("the run has used %.2g of %.2g minutes", used_s / 60, limit_s / 60)
        steps = ranks.broadcast(budget.fitting_steps, config.train, schedule, data.step)
        schedule.replan(data.step, steps)
    return config, schedule, budget


def _announce_rates(before: Schedule, after: Schedule, step: int) -> None:
    """Log a message if the learning rate rises because a resume at `step` changes the schedule."""
    every = max(1, (after.steps - step) // 100)
    highest = max((after.lr(later) for later in range(step, after.steps, every)), default=0.0)
    now = after.lr_scale * before.lr(max(step - 1, 0))
    if step > before.warmup_steps and highest > RISE_TO_ANNOUNCE * now:
        message = "from step %d, the learning rate rises from %.2g to %.2g and falls until step %d"
        log.info(f"{message}; the val loss may rise at first", step, now, highest, after.steps)


def _check_not_finished(
    context: RunContext, step: int, progress: Progress, *, extend: bool
) -> None:
    train = context.config.train
    if progress.ended and (reason := early_stop(progress, train)):
        advice = setting_arguments("train.stop_at_val_loss=null", "train.patience=null")
    elif extend and step >= (train.max_steps or math.inf):
        reason = f"train.max_steps {train.max_steps}"
        advice = setting_arguments("train.max_steps=null")
    elif extend:
        return
    elif step > train.steps:
        raise UsageError(
            f"{context.name} has done {step} steps, more than train.steps {train.steps}; set a "
            f"larger number, or sample from a checkpoint with: "
            f"{command('sample', '--checkpoint', 'STEP')}"
        )
    elif step == train.steps and progress.pending is None:
        best = f", of which {progress.best_step} was the best" if progress.since_best else ""
        reason = f"all steps done{best}"
        advice = f"{arguments(minutes=5)}, or {setting_arguments(f'train.steps={2 * step}')}"
    else:
        return
    raise UsageError(
        f"{context.name} is finished: {reason}, at step {step} of {train.steps}. To train for "
        f"longer, add {advice}"
    )


def _check_settings(old: Config, new: Config) -> None:
    """Log which settings a resume changes; raise ConfigError if one must not change."""
    changes = differences(values(old), values(new))
    resumable = {key: change for key, change in changes.items() if SETTINGS[key].resumable}
    resumable.pop("train.plans", None)  # plans follow from train.steps or train.minutes
    refused = [change for key, change in changes.items() if not SETTINGS[key].resumable]
    if resumable:
        log.info("changed: %s", ", ".join(resumable.values()))
    if refused:
        raise ConfigError(
            f"a resume continues the same run, so it cannot change {', '.join(refused)}; keep "
            f"the old values, or start a new run"
        )
