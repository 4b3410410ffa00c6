"""Estimate the parameters, memory and time of a run from the time of a few steps."""

import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpt.config.schema import Config
from gpt.device import computing_with, select_device
from gpt.distributed import SINGLE
from gpt.model.ensemble import make_model
from gpt.model.shapes import parameter_shapes
from gpt.runs.format import CheckpointData
from gpt.runs.weights import weights_of
from gpt.runs.write import write_checkpoint
from gpt.sampling.generate import generate_text
from gpt.terminal import phase
from gpt.text.corpus import Corpus
from gpt.training.compiled import with_compile_choice
from gpt.training.members import build_step
from gpt.training.memory_estimate import LIBRARY_BYTES, check_training_memory, training_bytes
from gpt.training.schedule import Schedule
from gpt.training.stopwatch import SAMPLING, Seconds, Stopwatch
from gpt.training.time_budget import TimeBudget, plan_new_run


@dataclass(frozen=True)
class Cost:
    """One kind of work: how often a run does it, and the seconds that it takes each time."""

    count: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """Memory and time that a run is expected to take."""

    device: str
    precision: str
    parameters: dict[str, int]  # part of the model -> number of parameters
    state_bytes: int  # weights, gradients and the optimizers' running averages
    peak_bytes: int  # largest number of bytes in use at a time
    costs: dict[str, Cost]  # by name; `start` is the work before the first step
    seconds: float  # duration of the run: the sum over `costs`


def estimate_run(
    config: Config, corpus: Corpus, clock: Callable[[], float], probed: Seconds | None = None
) -> tuple[Config, Estimate]:
    """Estimate a run from a few steps and an evaluation of a temporary model.

    Return the config and the estimate. With `train.minutes`, the config has as many steps as fit
    into the time. `clock` returns the seconds since the command began. `probed` contains earlier
    measurements of the same model, which are then not repeated.
    """
    vocabulary, V = corpus.vocabulary, len(corpus.vocabulary)
    with (
        computing_with(config.threads, deterministic=config.deterministic),
        phase("measuring a training step and an evaluation"),
    ):
        device = select_device(config.device)
        check_training_memory(config, V, device)
        model = make_model(config.model, V, config.seed).to(device)
        config = with_compile_choice(config, model, device)
        train_step = build_step(config, model, device, SINGLE, corpus.train)
        start_s = clock()
        stopwatch = Stopwatch(clock, probed)
        if not probed:
            stopwatch.probe(
                lambda step: train_step.read([train_step(step)]),
                train_step,
                config,
                corpus.val,
                SINGLE,
            )
        if config.train.minutes is not None:
            start_s = clock()  # includes measuring, which a run with `train.minutes` does, too

        def sample_and_save() -> None:
            generate_text(model, vocabulary, length=config.train.sample_length, seed=0)
            with tempfile.TemporaryDirectory() as folder:
                data = CheckpointData(0, config, vocabulary, weights_of(model))
                write_checkpoint(Path(folder), data, train_step.state_dict())

        stopwatch.seconds[SAMPLING] = stopwatch.time(sample_and_save, SINGLE)
        stopwatch.clock = lambda: start_s  # plan as of `start_s`: a run has not sampled by then
        budget = TimeBudget(config.train.minutes, len(corpus.val) - 1, stopwatch)
        config = plan_new_run(config, budget)
    train, schedule, whole = config.train, Schedule(config), budget.val_ids
    part = min(train.eval_characters or whole, whole)
    evaluations = schedule.times_due(train.eval_every)
    part_s, whole_s = budget.score_s(part), budget.score_s(whole)
    is_scored_first = train.init_from is not None
    costs = {
        "start": Cost(1, start_s),
        "step": Cost(train.steps, budget.step_s(schedule)),
        # loaded weights are also evaluated before training; the loss of a new model is known
        "evaluation": Cost(evaluations + is_scored_first, part_s),
        "last evaluation": Cost(int(part < whole), whole_s),
        "sample, checkpoint": Cost(evaluations + 1, stopwatch.other_s(SAMPLING)),
    }
    parameters, averages = _parameters(config, V), train_step.state_dict().tensors
    memory = training_bytes(config, V, device)
    return config, Estimate(
        device=str(device),
        precision=str(train_step.precision).removeprefix("torch."),
        parameters=parameters,
        state_bytes=4 * 2 * sum(parameters.values()) + sum(a.nbytes for a in averages.values()),
        peak_bytes=int(sum(memory.values()) + LIBRARY_BYTES),
        costs={name: cost for name, cost in costs.items() if cost.count and cost.seconds},
        seconds=sum(cost.count * cost.seconds for cost in costs.values()),
    )


def _parameters(config: Config, V: int) -> dict[str, int]:
    """Return the number of parameters of each part, such as `mlp`, in all layers and members."""
    counts = Counter[str]()
    for name, shape in parameter_shapes(config.model, V).items():
        part = re.sub(r"^(members\.\d+\.)?(blocks\.\d+\.)?", "", name).split(".")[0]
        counts["norms" if part.endswith("norm") else part] += math.prod(shape)
    return dict(counts)
