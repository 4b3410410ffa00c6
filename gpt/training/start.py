"""Start a new run, or resume one, and train it to its end."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from gpt.config.schema import Config
from gpt.device import computing_with, free_memory, select_device
from gpt.distributed import SINGLE, Ranks, remember
from gpt.errors import Interrupted, counted
from gpt.model.ensemble import LanguageModel, make_model
from gpt.runs.fine_tuning import check_same_model, warn_of_known_val
from gpt.runs.folder import check_free, find_run, make_numbered
from gpt.runs.lock import locked, set_aside
from gpt.runs.read import read_checkpoint
from gpt.runs.weights import adapted_weights, load_model
from gpt.runs.write import note_start, write_config
from gpt.terminal import phase
from gpt.text.cache import store_standard_input
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Vocabulary
from gpt.training.callbacks import OnEvent
from gpt.training.compiled import with_compile_choice
from gpt.training.data_parallel import select_own_device
from gpt.training.members import build_step, computed_with
from gpt.training.memory_estimate import check_training_memory
from gpt.training.resume import resumed_run
from gpt.training.run_context import Outcome, RunContext
from gpt.training.run_state import Progress, StartingPoint
from gpt.training.schedule import Schedule
from gpt.training.stopwatch import Seconds, Stopwatch
from gpt.training.time_budget import TimeBudget, plan_new_run
from gpt.training.trainer import Trainer

log = logging.getLogger(__name__)

Mode = Literal["new", "numbered", "overwrite", "resume", "extend"]
"""How to use the run's folder.

    new        the folder must be free
    numbered   use the first free folder of RUN, RUN-2, RUN-3, ...
    overwrite  replace the old run in the folder. The old run is deleted when the new run has its
               first checkpoint, and restored if the new run ends before that.
    resume     continue the run in the folder from its last checkpoint
    extend     as resume, but also continue a finished run; `train.minutes` is additional time
"""


def train_run(
    config: Config,
    corpus: Corpus,
    run: Path,
    mode: Mode = "new",
    *,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: OnEvent | None = None,
    clock: Callable[[], float] | None = None,
    probed: Seconds | None = None,
    ranks: Ranks = SINGLE,
) -> Outcome:
    """Train a model and record the run in a folder; `gpt.api.train` lists events and exceptions.

    The weights after step N depend only on the config, the text, the run in `train.init_from`, and,
    with `train.minutes`, on `clock`; on CUDA, two runs agree only up to rounding,
    as some kernels add in any order. Logging, evaluations, checkpoints and resumes do not change
    the weights, but a resume with a new value of `train.steps` plans the remaining steps anew.

    All ranks must call this function with the same arguments. The number of ranks changes only the
    order in which floats are added, and the dropout masks.

    `should_stop` is also called by threads of an evaluation. `clock` returns the seconds since the
    command began, by default since this call. `probed` contains the seconds of steps and of a
    character that were measured before, if any.
    """
    called_at = time.perf_counter()
    clock = clock or (lambda: time.perf_counter() - called_at)
    device = select_own_device(select_device(config.device), ranks)
    ranks.check_batch(config.train.batch_size)
    is_new = mode not in ("resume", "extend")
    with computing_with(config.threads, deterministic=config.deterministic):
        with phase("preparing the training"):
            if device.type == "cuda":  # CUDA graphs keep the memory of all activations
                free_memory(device)
            check_training_memory(config, len(corpus.vocabulary), device, ranks)
            context = RunContext(config, corpus, run.absolute(), ranks, should_stop, device, clock)
            if is_new:
                start = new_run(context, probed)
                # create the folder only now, because the calls above can fail
                folder = ranks.broadcast(_make_folder, context.folder, mode)
                context = replace(context, folder=folder)
        with locked(context.folder) if ranks.rank == 0 else nullcontext():
            if is_new:
                ranks.broadcast(set_aside, context.folder)  # moves the old run away, if any
            else:
                with phase("loading the checkpoint"):
                    start = resumed_run(context, extend=mode == "extend")
            context = replace(context, config=start.config)
            ranks.broadcast(_record_start, context, start)
            log.info("%s: %s; writing %s", corpus.name, corpus.summary(), context.name)
            remember(str(context.folder))  # for workers that torchrun restarts
            return Trainer(context, start, on_event).fit()


def new_run(context: RunContext, probed: Seconds | None) -> StartingPoint:
    """Return the state of a new run, with a plan of its steps if `train.minutes` is set."""
    config, corpus, ranks = context.config, context.corpus, context.ranks
    model, provenance = initial_model(config, corpus.vocabulary, context.device)
    config = with_compile_choice(config, model, context.device)
    train_step = build_step(config, model, context.device, ranks, corpus.train)
    stopwatch = Stopwatch(context.clock, probed, train_step.warmup)
    if config.train.minutes is not None and not probed:
        stopwatch.probe(train_step.probe, train_step, config, corpus.val, ranks)
    budget = TimeBudget(config.train.minutes, len(corpus.val) - 1, stopwatch)
    config = ranks.broadcast(plan_new_run, config, budget)
    schedule = Schedule(config)
    train_step.use_schedule(schedule)
    if ranks.any(context.should_stop()):
        raise Interrupted("stopped before training began; nothing is saved")
    if (minutes := config.train.minutes) is not None:
        steps, last_s = counted(schedule.steps, "step"), budget.score_s(budget.val_ids)
        if schedule.steps == config.train.max_steps:
            message = "%s, the limit train.max_steps; the run may end before its %g minutes"
            log.info(message, steps, minutes)
        else:
            message = "about %s in %g min, of which the evaluation at the end takes %.1f s"
            log.info(message, steps, minutes, last_s)
    return StartingPoint(config, 0, train_step, schedule, budget, Progress(), provenance=provenance)


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


def _make_folder(folder: Path, mode: Mode) -> Path:
    if mode == "numbered":
        return make_numbered(folder)
    check_free(folder, overwrite=mode == "overwrite")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _record_start(context: RunContext, start: StartingPoint) -> None:
    config = start.schedule.stored(context.config)
    store_standard_input(context.corpus.standard_input, context.folder)
    computed = computed_with(start.train_step) | {
        "device": str(start.train_step.device),
        "ranks": context.ranks.size,
        **start.provenance,
    }
    note_start(context.folder, config, context.corpus.sha256, start.step, computed)
    write_config(context.folder, config)
