"""Start a new run, or resume one, and train it to its end."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from gpt.config.schema import Config
from gpt.config.yaml import to_yaml
from gpt.device import computing_with, select_device
from gpt.distributed.ddp import select_own_device
from gpt.distributed.launch import remember
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.errors import CheckpointError, Interrupted, UsageError, counted
from gpt.files import write_atomically
from gpt.runs.folder import check_free, make_folder, make_numbered
from gpt.runs.lock import locked, set_aside
from gpt.runs.old_losses import NOTICE
from gpt.runs.provenance import note_start
from gpt.runs.recovery import check_resumable, recover
from gpt.runs.weights import load_model
from gpt.status import phase
from gpt.text.corpus import Corpus
from gpt.text.standard_input import store_standard_input
from gpt.training.build_step import Update, build_run_step
from gpt.training.callbacks.callback import OnEvent
from gpt.training.evaluator import Diverged, Progress
from gpt.training.init_from import initial_model
from gpt.training.memory_estimate import check_training_memory
from gpt.training.run_context import Extras, Outcome, RunContext
from gpt.training.run_state import RunState
from gpt.training.schedule import Schedule
from gpt.training.stopwatch import Stopwatch
from gpt.training.time_budget import TimeBudget
from gpt.training.trainer import Trainer

log = logging.getLogger(__name__)

RISE_TO_ANNOUNCE = 1.2  # factor on the learning rate above which a resume announces it

Mode = Literal["new", "numbered", "overwrite", "resume", "extend"]
"""How to use the run's folder.

    new        the folder must be free
    numbered   use the first free folder of RUN, RUN-2, RUN-3, ...
    overwrite  replace the old run in the folder. The old run is deleted when the new run has its
               first checkpoint, and restored if the new run ends before that.
    resume     continue the run in the folder from its last checkpoint
    extend     continue a finished run; `train.minutes` is the time for further steps
"""


def train(
    config: Config,
    corpus: Corpus,
    run: Path,
    mode: Mode = "new",
    *,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: OnEvent | None = None,
    stopwatch: Stopwatch | None = None,
    ranks: Ranks = SINGLE,
    extras: Extras = Extras(),  # noqa: B008  # it is immutable
) -> Outcome:
    """Train a model and record the run in a folder; `gpt.api.train` lists events and exceptions.

    The weights after step N depend only on the config, the text, the run in `train.init_from`, and,
    with `train.minutes`, on the clock of `stopwatch`. Logging, evaluations,
    checkpoints and resumes change nothing. There are two exceptions: on CUDA, some kernels add in
    any order, so two runs agree up to rounding; and a resume with other `train.steps` changes the
    schedule.

    If the loss or the gradient of a step is NaN or infinite, the model (in an ensemble, only the
    affected members) skips the step. See `gpt.training.divergence` for repeated skips.

    All ranks must call this function with the same arguments. The number of ranks changes only the
    order in which floats are added, and the dropout masks.

    Args:
        config: the settings of the run.
        corpus: the text to train on.
        run: the folder of the run.
        mode: how to use the folder; see `Mode`.
        should_stop: returns whether to stop; also called by the threads of an evaluation.
        on_event: receives a dict for each event, on rank 0.
        stopwatch: its clock returns the seconds since the command began, by default since this
            call. It may have measured a step of the model before.
        ranks: the processes that train the model together.
        extras: what other parts of the package add to the run.
    """
    began = time.perf_counter()
    stopwatch = stopwatch or Stopwatch(lambda: time.perf_counter() - began)
    device = select_own_device(select_device(config.device), ranks)
    ranks.check_batch(config.train.batch_size)
    state: RunState | None = None
    source: dict[str, str | int] = {}
    with computing_with(config.threads, deterministic=config.deterministic):
        with phase("preparing the training"):
            check_training_memory(config, len(corpus.vocabulary), device, ranks)
            context = RunContext(
                config, corpus, run.absolute(), ranks, should_stop, device, stopwatch.clock, extras
            )
            if mode not in ("resume", "extend"):
                state, source = _new_state(context, stopwatch)
                # last, because the calls above can fail
                folder = ranks.broadcast(_make_folder, context.folder, mode)
                context = replace(context, folder=folder)
        with locked(context.folder) if ranks.rank == 0 else nullcontext():
            if state is None:
                with phase("loading the checkpoint"):
                    state = _resumed_state(context, extend=mode == "extend")
            else:
                ranks.broadcast(set_aside, context.folder)
            context = replace(context, config=state.config)
            ranks.broadcast(_record_start, context, state, source)
            log.info("%s: %s; writing %s", corpus.name, corpus.summary(), context.name)
            remember(str(context.folder))
            trainer, notice = Trainer(context, state, on_event), ""
            while True:
                try:
                    return trainer.fit(notice)
                except Diverged as error:
                    notice = trainer.roll_back(str(error))


def _new_state(context: RunContext, stopwatch: Stopwatch) -> tuple[RunState, dict[str, str | int]]:
    """Return the state of a new run, and the provenance of its weights (see `initial_model`)."""
    config, corpus, ranks = context.config, context.corpus, context.ranks
    model, source = initial_model(config, corpus.vocabulary, context.device)
    update = build_run_step(context, model)
    if config.train.minutes is not None and not stopwatch.probed:
        stopwatch.probe(update.probe, update, config, corpus.val, ranks)
    budget = TimeBudget(config, len(corpus.val) - 1, stopwatch)
    config = ranks.broadcast(budget.first_plan, config)
    schedule = Schedule(config)
    update.follow(schedule)
    if ranks.any(context.should_stop()):
        raise Interrupted("stopped before training began; nothing is saved")
    if (minutes := config.train.minutes) is not None:
        message = "about %s in %g min, of which the evaluation at the end takes %.1f s"
        last_s = budget.score_s(budget.val_characters)
        log.info(message, counted(schedule.steps, "step"), minutes, last_s)
    return RunState(config, 0, update, schedule, budget, Progress()), source


def _resumed_state(context: RunContext, *, extend: bool) -> RunState:
    """Load the run's last checkpoint, to continue the run with the settings `context.config`.

    With `extend`, a finished run can continue, too, and `train.minutes` is the additional time.

    Raises:
        ConfigError: a setting differs that a resume cannot change.
        UsageError: the text has changed, the run is finished, or minutes are too few.
        CheckpointError: the checkpoint does not fit the model.
    """
    config, corpus, ranks = context.config, context.corpus, context.ranks
    data, state = ranks.broadcast(recover, context.folder)
    check_resumable(data.config, config)
    if data.had_counts:
        log.warning(
            f"{NOTICE}. It continues on the whole train split, so it does not repeat the old "
            f"version's run bit for bit",
            context.name,
        )
    try:
        progress = Progress(**state.numbers["progress"])
        _check_text(context, state.numbers)
        if not extend:
            _check_not_finished(context, data.step, progress)
        update = build_run_step(context, load_model(data, context.device))
        update.load_state_dict(state)
        _warn_of_other_digits(update, state.numbers)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = " ".join(str(error).split()).partition(" For further information")[0]  # pydantic's
        raise CheckpointError(
            f"{context.name}/checkpoints/step-{data.step}: its training state is not of this model "
            f"({reason:.200}); start a new run"
        ) from error
    minutes = config.train.minutes
    is_new_time = minutes is not None and (extend or minutes != data.config.train.minutes)
    if extend and minutes is not None:
        config = config.changed(train={"minutes": progress.elapsed_s / 60 + minutes})
    stopwatch, schedule = Stopwatch(context.clock), Schedule(config)
    schedule.scale = progress.scale
    if minutes is not None:
        stopwatch.probe(update.probe, update, config, corpus.val, ranks)
    budget = TimeBudget(config, len(corpus.val) - 1, stopwatch, progress.elapsed_s)
    if is_new_time:
        used_s, limit_s = budget.used_s, budget.limit_s
        log.info("the run has used %.2g of %.2g minutes", used_s / 60, limit_s / 60)
        schedule.replan(data.step, data.step + 1)
        schedule.replan(data.step, ranks.broadcast(budget.first_end, schedule, data.step))
    update.follow(schedule)
    _announce_rates(Schedule(data.config), schedule, data.step)
    return RunState(config, data.step, update, schedule, budget, progress, data.config)


def _announce_rates(before: Schedule, after: Schedule, step: int) -> None:
    """Log that the learning rate rises if a resume at `step` changes the schedule so."""
    every = max(1, (after.steps - step) // 100)
    highest = max((after.lr(each) for each in range(step, after.steps, every)), default=0.0)
    now = after.scale * before.lr(max(step - 1, 0))
    if step > before.warmup_steps and highest > RISE_TO_ANNOUNCE * now:
        message = "from step %d, the learning rate rises from %.2g to %.2g and falls until step %d"
        log.info(f"{message}; the val loss may rise at first", step, now, highest, after.steps)


def _check_text(context: RunContext, saved: dict[str, Any]) -> None:
    if context.corpus.sha256 != saved["text_sha256"]:
        raise UsageError(
            f"{context.corpus.name} is not the text that {context.name} began with, or it has "
            f"changed since; restore the old one, or start a new run"
        )


def _check_not_finished(context: RunContext, step: int, progress: Progress) -> None:
    train = context.config.train
    if progress.ended and (reason := progress.early_stop(train)):
        advice = "--set train.stop_at_val_loss=null --set train.patience=null"
    elif step > train.steps:
        raise UsageError(
            f"{context.name} has done {step} steps, more than train.steps {train.steps}; set a "
            f"larger number, or sample an earlier step by gpt sample --checkpoint STEP"
        )
    elif step == train.steps and progress.pending is None:
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
            message = "%s: computing with %s, where the run had %s; its losses may differ slightly"
            log.warning(message, name, now, saved[name])


def _make_folder(folder: Path, mode: Mode) -> Path:
    if mode == "numbered":
        folder = make_numbered(folder)
    check_free(folder, overwrite=mode == "overwrite")
    make_folder(folder)
    return folder


def _record_start(context: RunContext, state: RunState, source: dict[str, str | int]) -> None:
    config = state.schedule.stored(context.config)
    store_standard_input(context.corpus.standard_input, context.folder)
    computed: dict[str, str | int] = {
        "device": str(state.update.device),
        "precision": str(state.update.precision).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "ranks": context.ranks.size,
        **source,
    }
    note_start(context.folder, config, context.corpus.sha256, state.step, computed)
    write_atomically(context.folder / "config.yaml", [to_yaml(config).encode()])
