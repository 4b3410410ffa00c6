"""`RunState`: what a new, fine-tuned, resumed or rolled-back run starts from.

Fine-tuning adds the new characters of its text to the old run's vocabulary. V is the new size.

A step diverges if its loss or its gradient is NaN or infinite. Such a step is skipped, in an
ensemble only by the affected members. After MAX_SKIPPED_STEPS in a row, the run rolls back to its
last checkpoint and continues with half the learning rates.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from gpt.config.removed import COUNTS_NOTICE
from gpt.config.schema import Config
from gpt.errors import CheckpointError, Interrupted, TrainingError, UsageError, counted
from gpt.model.ensemble import LanguageModel, make_model
from gpt.runs.folder import find_run
from gpt.runs.format import CheckpointData
from gpt.runs.read import read_checkpoint
from gpt.runs.recovery import check_resumable, check_same_model, recover, warn_of_known_val
from gpt.runs.weights import adapted_weights, load_model, load_weights
from gpt.text.vocabulary import Vocabulary
from gpt.training.compiled import with_compile_choice
from gpt.training.members import Update, build_step, computed_with
from gpt.training.run_context import Diverged, Progress, RunContext
from gpt.training.schedule import Schedule
from gpt.training.step import StepResult
from gpt.training.time_budget import Seconds, Stopwatch, TimeBudget

log = logging.getLogger(__name__)

RISE_TO_ANNOUNCE = 1.2  # a resume logs a message if the learning rate rises by a larger factor

MAX_SKIPPED_STEPS = 3  # number of skipped steps in a row that causes a rollback
MAX_ROLLBACKS = 3  # largest number of rollbacks in a run; the next divergence ends it


@dataclass(frozen=True)
class RunState:
    """State from which a new or resumed run trains."""

    config: Config  # settings for the training that follows
    step: int  # number of steps done
    update: Update
    schedule: Schedule
    budget: TimeBudget
    progress: Progress
    saved_config: Config | None = None  # the settings in the checkpoint; None for a new run
    provenance: dict[str, str | int] = field(default_factory=dict)  # see `initial_model`


def new_state(context: RunContext, probed: Seconds | None) -> RunState:
    """Return the state of a new run, with a plan of its steps if `train.minutes` is set."""
    config, corpus, ranks = context.config, context.corpus, context.ranks
    model, provenance = initial_model(config, corpus.vocabulary, context.device)
    config = with_compile_choice(config, model, context.device)
    update = build_step(config, model, context.device, ranks, corpus.train)
    stopwatch = Stopwatch(context.clock, probed, update.warmup)
    if config.train.minutes is not None and not probed:
        stopwatch.probe(update.probe, update, config, corpus.val, ranks)
    budget = TimeBudget(config, len(corpus.val) - 1, stopwatch)
    config = ranks.broadcast(budget.first_plan)
    schedule = Schedule(config)
    update.use_schedule(schedule)
    if ranks.any(context.should_stop()):
        raise Interrupted("stopped before training began; nothing is saved")
    if (minutes := config.train.minutes) is not None:
        steps, last_s = counted(schedule.steps, "step"), budget.score_s(budget.val_ids)
        if schedule.steps == config.train.max_steps:
            log.info("%s (train.max_steps); they may take less than %g min", steps, minutes)
        else:
            message = "about %s in %g min, of which the evaluation at the end takes %.1f s"
            log.info(message, steps, minutes, last_s)
    return RunState(config, 0, update, schedule, budget, Progress(), provenance=provenance)


def resumed_state(context: RunContext, *, extend: bool) -> RunState:
    """Load the run's last checkpoint, to continue the run with the settings `context.config`.

    With `extend`, a finished run can continue, too, and `train.minutes` adds to the time used so
    far. Raise ConfigError, UsageError or CheckpointError if the run cannot continue.
    """
    data, state = context.ranks.broadcast(recover, context.folder)
    if data.had_counts:
        log.warning(
            f"{COUNTS_NOTICE}. The run continues on the whole train split, so its results differ "
            f"from those of the old version",
            context.name,
        )
    with _refusing_other_state(context, data.step):
        progress = Progress(**state.numbers["progress"])
        before = {name: state.numbers[name] for name in ("threads", "precision")}
    if context.corpus.sha256 != data.text_sha256:
        raise UsageError(
            f"{context.corpus.name} is not the text that {context.name} began with, or it has "
            f"changed since; restore the text, name another run by --resume RUN, or start a new run"
        )
    _check_not_finished(context, data.step, progress, extend=extend)
    check_resumable(data.config, context.config)
    with _refusing_other_state(context, data.step):
        model = load_model(data, context.device)
        update = build_step(
            context.config, model, context.device, context.ranks, context.corpus.train
        )
        update.load_state_dict(state)
    for name, now in computed_with(update).items():
        if now != before[name]:
            message = "%s: computing with %s, where the run had %s; its losses may differ slightly"
            log.warning(message, name, now, before[name])
    config, schedule, budget = _resumed_plan(context, data, update, progress, extend=extend)
    update.use_schedule(schedule)
    _announce_rates(Schedule(data.config), schedule, data.step)
    return RunState(config, data.step, update, schedule, budget, progress, data.config)


@contextmanager
def _refusing_other_state(context: RunContext, step: int) -> Iterator[None]:
    """Convert an error of loading a training state in the `with` block to a CheckpointError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = " ".join(str(error).split()).partition(" For further information")[0]  # drop links
        raise CheckpointError(
            f"{context.name}/checkpoints/step-{step}: its training state does not fit this model "
            f"({reason:.200}); start a new run"
        ) from error


def _resumed_plan(
    context: RunContext, data: CheckpointData, update: Update, progress: Progress, *, extend: bool
) -> tuple[Config, Schedule, TimeBudget]:
    """Return the config, schedule and budget of a resume; plan anew if `train.minutes` is new.

    A new value of `train.steps` also becomes a plan, so that the stored config repeats the run.
    """
    config, corpus, ranks = context.config, context.corpus, context.ranks
    before = data.config.train
    minutes = config.train.minutes
    has_steps_left = data.step < (config.train.max_steps or math.inf)
    is_new_time = minutes is not None and (extend or minutes != before.minutes) and has_steps_left
    if extend and minutes is not None:
        config = config.changed(train={"minutes": progress.elapsed_s / 60 + minutes})
    stopwatch, schedule = Stopwatch(context.clock, warmup=update.warmup), Schedule(config)
    schedule.lr_scale = progress.scale
    if minutes is not None:
        stopwatch.probe(update.probe, update, config, corpus.val, ranks)
    elif not config.train.plans and (before.plans or before.steps != config.train.steps):
        schedule.plans = before.plans or ((0, before.steps),)
        schedule.replan(data.step, config.train.steps)
    budget = TimeBudget(config, len(corpus.val) - 1, stopwatch, progress.elapsed_s)
    if is_new_time:
        used_s, limit_s = budget.used_s, budget.limit_s
        log.info("the run has used %.2g of %.2g minutes", used_s / 60, limit_s / 60)
        # for now, plan one more step, because `first_total` needs a schedule that has not ended
        schedule.replan(data.step, data.step + 1)
        schedule.replan(data.step, ranks.broadcast(budget.first_total, schedule, data.step))
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
    if progress.ended and (reason := progress.early_stop(train)):
        advice = "--set train.stop_at_val_loss=null --set train.patience=null"
    elif extend and step >= (train.max_steps or math.inf):
        reason, advice = f"train.max_steps {train.max_steps}", "--set train.max_steps=null"
    elif extend:
        return
    elif step > train.steps:
        raise UsageError(
            f"{context.name} has done {step} steps, more than train.steps {train.steps}; set a "
            f"larger number, or sample from a checkpoint with: gpt sample --checkpoint STEP"
        )
    elif step == train.steps and progress.pending is None:
        best = f", of which {progress.best_step} was the best" if progress.since_best else ""
        reason = f"all steps done{best}"
        advice = f"--minutes N, or --set train.steps={2 * step}"
    else:
        return
    raise UsageError(
        f"{context.name} is finished: {reason}, at step {step} of {train.steps}. To train for "
        f"longer, add {advice}"
    )


def initial_model(
    config: Config, vocabulary: Vocabulary, device: torch.device
) -> tuple[LanguageModel, dict[str, str | int]]:
    """Return the model of step 0, and the provenance of its weights.

    The provenance of new weights is empty. For weights of the run `train.init_from`, it contains
    the path of that run, the step of its checkpoint, and the SHA-256 of the weights.
    """
    if config.train.init_from is None:
        return make_model(config.model, len(vocabulary), config.seed).to(device), {}
    run = find_run(config.train.init_from)
    data = read_checkpoint(run)
    check_same_model(data, config)
    if data.had_counts:
        log.warning(COUNTS_NOTICE, run)
    added = counted(len(data.vocabulary.outside(vocabulary.characters)), "new character")
    log.info("fine-tuning from %s, step %d: %s", run, data.step, added)
    warn_of_known_val(data.config, config)
    weights = adapted_weights(data, config.model, vocabulary)
    model = load_model(replace(data, config=config, vocabulary=vocabulary, weights=weights), device)
    return model, {
        "init_from": str(run),
        "init_from_step": data.step,
        "init_from_sha256": data.weights_sha256,
    }


def read_results(
    update: Update,
    unread: Sequence[StepResult],
    step: int,
    progress: Progress,
    on_skip: Callable[[int, str], None],
) -> dict[str, float]:
    """Wait for `unread`, the results of the last steps (oldest first); count skipped steps.

    `step` is the number of steps done, including those in `unread`. `on_skip` is called with the
    number of each skipped step, and the reason.

    Returns:
        `train_loss` and `grad_norm` of the newest step (means over an ensemble), if finite.

    Raises:
        Diverged: MAX_SKIPPED_STEPS steps in a row were skipped.
    """
    results = update.read(list(unread))
    for number, (losses, norms) in enumerate(results, step - len(results) + 1):
        results_of_members = zip(update.members, losses, norms, strict=True)
        failures = [each.scaler.is_failure(loss, norm) for each, loss, norm in results_of_members]
        if not any(failures):
            progress.skipped_in_a_row = 0
            continue
        progress.skipped_in_a_row += 1
        m = failures.index(True)
        whose = f" by member {m + 1} of {len(losses)}" if len(losses) > 1 else ""
        numbers = f"the loss is {losses[m]}, the gradient's norm {norms[m]}"
        reason = f"step {number} skipped{whose}: {numbers}"
        on_skip(number, reason)
        if progress.skipped_in_a_row == MAX_SKIPPED_STEPS:
            raise Diverged(f"{reason}; {MAX_SKIPPED_STEPS} such steps in a row")
    newest = {"train_loss": sum(losses) / len(losses), "grad_norm": sum(norms) / len(norms)}
    return {name: value for name, value in newest.items() if math.isfinite(value)}


def restore_last(
    context: RunContext, update: Update, schedule: Schedule, reason: str
) -> tuple[int, Progress]:
    """Load the last intact checkpoint into `update`, and halve the learning rates of `schedule`.

    Return the step of the checkpoint, and its losses and counters. Raise TrainingError if the run
    has already rolled back MAX_ROLLBACKS times; the error's message begins with `reason`.
    """
    if schedule.lr_scale <= 2**-MAX_ROLLBACKS:
        raise TrainingError(
            f"{reason}; the run rolled back {MAX_ROLLBACKS} times. The checkpoints of "
            f"{context.name} are unchanged. Start again with a lower train.learning_rate, or "
            f"train.precision fp32"
        )
    schedule.lr_scale /= 2
    data, state = context.ranks.broadcast(recover, context.folder)
    load_weights(update.model, data)
    update.load_state_dict(state)
    progress = Progress(**state.numbers["progress"])
    progress.scale, progress.skipped_in_a_row = schedule.lr_scale, 0
    return data.step, progress
