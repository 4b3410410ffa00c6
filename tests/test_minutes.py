"""Runs that end when their time does: plans, and that they repeat."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.model.transformer import GPT
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.sources import open_source
from gpt.training.schedule import learning_rate, part_done, steps_due, window_length, with_plan
from gpt.training.trainer import Outcome, train
from tests.conftest import metrics_of, small
from tests.test_training import same_weights

pytestmark = pytest.mark.precision
Steps = Callable[[int], float]


class Machine:
    """A clock that advances as a model computes: by `step_s(n)` for the n-th training batch."""

    def __init__(self, step_s: Steps, window_s: float = 0.01, start_s: float = 2.0) -> None:
        self.now, self.batches = start_s, 0
        self.step_s, self.window_s = step_s, window_s

    def __call__(self) -> float:
        return self.now

    def compute(self, module: torch.nn.Module, inputs: object) -> None:
        if isinstance(module, GPT):
            self.batches += module.training
            self.now += self.step_s(self.batches) if module.training else self.window_s


@pytest.fixture
def corpus(text_file: Path) -> Corpus:
    return load_corpus(open_source(str(text_file)))


def timed(minutes: float = 1.0, **changes: Any) -> Config:
    """A small config that leaves its steps, warmup and evaluations to the time."""
    tree = small(model__T=12, train__first_window=4, **changes).model_dump()
    for key in ("steps", "warmup_steps", "eval_every", "checkpoint_every"):
        del tree["train"][key]
    tree["train"] |= {"minutes": minutes, "sample_length": 0}
    return Config.model_validate(tree)


def run_on(machine: Machine, config: Config, corpus: Corpus, run: str, **options: Any) -> Outcome:
    hook = torch.nn.modules.module.register_module_forward_pre_hook(machine.compute)
    try:
        return train(config, corpus, Path(run), clock=machine, **options)
    finally:
        hook.remove()


def even(n: int) -> float:
    return 0.3


def slower_from_the_middle(n: int) -> float:
    return 0.2 if n < 120 else 0.4


def faster_from_the_middle(n: int) -> float:
    return 0.4 if n < 70 else 0.2


def uneven(n: int) -> float:
    return 0.1 + 0.4 * (n * 7 % 13) / 13


PACES = [even, slower_from_the_middle, faster_from_the_middle, uneven]


@pytest.mark.parametrize("pace", PACES, ids=lambda pace: pace.__name__)
def test_a_run_ends_with_its_time_and_repeats_from_its_config(pace: Steps, corpus: Corpus) -> None:
    machine = Machine(pace)
    outcome = run_on(machine, timed(), corpus, "r")
    print(machine.now, outcome)
    print(load_config("r/config.yaml").train.plans)
    assert 0.9 * 60 < machine.now <= 60
    repeated = load_config("r/config.yaml")
    assert repeated.train.minutes is None
    again = train(repeated, corpus, Path("again"))
    assert again.step == outcome.step
    assert metrics_of(Path("again")) == metrics_of(Path("r"))
    assert same_weights(Path("again"), Path("r"))
