"""Start a new run, or resume one, and train it to its end."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gpt.config.schema import Config
from gpt.config.yaml import to_yaml
from gpt.device import computing_with, free_memory, select_device
from gpt.distributed import SINGLE, Ranks, remember
from gpt.files import write_atomically
from gpt.runs.folder import check_free, make_numbered
from gpt.runs.lock import locked, set_aside
from gpt.runs.write import note_start
from gpt.terminal import phase
from gpt.text.cache import store_standard_input
from gpt.text.corpus import Corpus
from gpt.training.callbacks import OnEvent
from gpt.training.data_parallel import select_own_device
from gpt.training.members import computed_with
from gpt.training.memory_estimate import check_training_memory
from gpt.training.run_context import Extras, Outcome, RunContext
from gpt.training.run_state import RunState, new_state, resumed_state
from gpt.training.time_budget import Seconds
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
    extras: Extras = Extras(),  # noqa: B008  # it is immutable
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
            context = RunContext(
                config, corpus, run.absolute(), ranks, should_stop, device, clock, extras
            )
            if is_new:
                state = new_state(context, probed)
                # create the folder only now, because the calls above can fail
                folder = ranks.broadcast(_make_folder, context.folder, mode)
                context = replace(context, folder=folder)
        with locked(context.folder) if ranks.rank == 0 else nullcontext():
            if is_new:
                ranks.broadcast(set_aside, context.folder)  # moves the old run away, if any
            else:
                with phase("loading the checkpoint"):
                    state = resumed_state(context, extend=mode == "extend")
            context = replace(context, config=state.config)
            ranks.broadcast(_record_start, context, state)
            log.info("%s: %s; writing %s", corpus.name, corpus.summary(), context.name)
            remember(str(context.folder))  # for workers that torchrun restarts
            return Trainer(context, state, on_event).fit()


def _make_folder(folder: Path, mode: Mode) -> Path:
    if mode == "numbered":
        return make_numbered(folder)
    check_free(folder, overwrite=mode == "overwrite")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _record_start(context: RunContext, state: RunState) -> None:
    config = state.schedule.stored(context.config)
    store_standard_input(context.corpus.standard_input, context.folder)
    computed = computed_with(state.update) | {
        "device": str(state.update.device),
        "ranks": context.ranks.size,
        **state.provenance,
    }
    note_start(context.folder, config, context.corpus.sha256, state.step, computed)
    write_atomically(context.folder / "config.yaml", [to_yaml(config).encode()])
