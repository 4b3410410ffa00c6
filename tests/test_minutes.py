"""Runs that end when their time does, and repeat without a clock."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt import api
from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.errors import Interrupted, UsageError
from gpt.evaluation import windows
from gpt.model.transformer import GPT
from gpt.recipe.dry_run import estimate_run
from gpt.runs.read import read_summary
from gpt.text.corpus import Corpus
from gpt.training import time_budget
from gpt.training.run_context import Outcome
from gpt.training.schedule import Schedule
from gpt.training.start import train_run
from tests.conftest import before_forward, metrics_of, saved_weights, small, stop_at

Seconds = Callable[[int], float]
BEFORE_TRAINING_S = 2.0


class Machine:
    """A clock that advances as a model computes: by `step_s(n)` for the n-th training batch."""

    def __init__(self, step_s: Seconds, window_s: float = 0.01) -> None:
        self.now, self.batches = BEFORE_TRAINING_S, 0
        self.step_s, self.window_s = step_s, window_s

    def __call__(self) -> float:
        return self.now

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The machine on which the models here compute."""

        def compute(model: GPT, ids: torch.Tensor) -> None:
            self.batches += model.training
            self.now += self.step_s(self.batches) if model.training else self.window_s

        with before_forward(compute):
            yield


def timed(minutes: float = 1.0, **changes: Any) -> Config:
    """A small config that leaves steps, warmup and evaluations to the time."""
    sizes = {"model__T": 12, "train__first_window": 4, "model__C": 8, "model__n_layer": 1}
    tree = small(**sizes | changes).model_dump()
    left_open = {"steps", "warmup_steps", "eval_every", "checkpoint_every"}
    for key in left_open - {key.removeprefix("train__") for key in changes}:
        del tree["train"][key]
    tree["train"] |= {"minutes": minutes, "sample_length": 0}
    return Config.model_validate(tree)


def run_on(machine: Machine, config: Config, corpus: Corpus, run: str, **options: Any) -> Outcome:
    with machine.computing():
        return train_run(config, corpus, Path(run), clock=machine, **options)


def even(batch: int) -> float:
    return 0.8


def half_as_fast_from_the_middle(batch: int) -> float:
    return 0.6 if batch < 40 else 1.2


def twice_as_fast_from_the_middle(batch: int) -> float:
    return 1.2 if batch < 25 else 0.6


def uneven(batch: int) -> float:
    return 0.5 + 0.6 * (batch * 7 % 13) / 13


PACES = [half_as_fast_from_the_middle, twice_as_fast_from_the_middle, uneven]


@pytest.mark.parametrize("pace", PACES, ids=lambda pace: pace.__name__)
@pytest.mark.precision
def test_a_run_ends_with_its_time_and_repeats_from_its_folder(pace, corpus):
    machine = Machine(pace)
    outcome = run_on(machine, timed(), corpus, "r")
    assert 0.9 * 60 < machine.now <= 60
    rates = [record["lr"] for record in metrics_of(Path("r")) if "lr" in record]
    warmup = load_config("r/config.yaml").train.warmup_steps
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert rates[-1] < 0.05 * max(rates)
    again = train_run(load_config("r/config.yaml"), corpus, Path("again"))
    assert again.step == outcome.step
    assert metrics_of(Path("again")) == metrics_of(Path("r"))
    assert saved_weights("again") == saved_weights("r")


def test_a_warmup_longer_than_the_planned_run_is_shortened(corpus):
    """Bug: after a slow start on a GPU, train.warmup_steps 14 was refused for a run of 1 step."""
    config = load_config(timed(0.4), ["train.warmup_steps=997"])
    outcome = run_on(Machine(even), config, corpus, "r")
    train_config = load_config("r/config.yaml").train
    assert 0 < train_config.warmup_steps <= train_config.plans[0][1] < 97
    assert outcome.step > 0


def test_short_and_long_windows_have_a_pace_each(corpus):
    """The last sixth of the steps, with longer windows, would come as a surprise."""
    seen: list[int] = []
    machine = Machine(lambda batch: 0.5 if seen[-1] == 4 else 1.5)

    def note(model: GPT, ids: torch.Tensor) -> None:
        if model.training:
            seen.append(ids.shape[1])

    with before_forward(note):
        run_on(machine, timed(), corpus, "r")
    assert 0.9 * 60 < machine.now <= 60
    plans = load_config("r/config.yaml").train.plans
    assert max(steps for _, steps in plans) < 1.1 * min(steps for _, steps in plans)


def test_time_for_the_last_evaluation_is_left(corpus, monkeypatch):
    """It takes 8 s of 60 here, for 20 windows: those on the way are on a part of the val split."""
    monkeypatch.setattr(windows, "EVAL_CHARACTERS", 12)
    monkeypatch.setattr(time_budget, "MIN_EVAL_CHARACTERS", 12)
    machine = Machine(even, window_s=0.4)
    run_on(machine, timed(), corpus, "r")
    assert 0.9 * 60 < machine.now <= 60
    last = metrics_of(Path("r"))[-1]
    assert {"val_loss", "val_loss_part"} <= last.keys()


def test_a_dry_run_plans_as_the_run_does(corpus):
    """Bug: it planned the steps by one measurement and said how long they take by another."""
    config, machine = timed(), Machine(even, window_s=0.8)
    with machine.computing():
        planned, estimated = estimate_run(config, corpus, machine)
    run_on(Machine(even, window_s=0.8), config, corpus, "r")
    steps = load_config("r/config.yaml").train.plans[0][1]
    assert planned.train.plans == ((0, planned.train.steps),)
    assert planned.train.steps == pytest.approx(steps, rel=0.1)
    assert estimated.costs["step"].count == planned.train.steps
    assert 0.85 * 60 < estimated.seconds <= 60


def test_too_few_minutes_are_refused_with_as_many_as_work(corpus):
    """Bug: 0.05 minutes trained one step and took 5 s."""
    with pytest.raises(UsageError, match=r"minutes 0\.05 is too short for one step") as caught:
        run_on(Machine(even), timed(0.05), corpus, "r")
    assert not Path("r").exists()
    least = 0.05 + float(str(caught.value).split("at least ")[1].split()[0])
    assert least < 0.3
    machine = Machine(even)
    assert run_on(machine, timed(least), corpus, "r").step >= 1
    assert machine.now < 60 * least


def kill_at(step: int) -> Callable[[dict[str, Any]], None]:
    def kill(event: dict[str, Any]) -> None:
        if event["step"] == step:
            raise KeyboardInterrupt

    return kill


def test_the_time_used_counts_on_over_resumes(corpus):
    first, second = Machine(even), Machine(even)
    with pytest.raises(Interrupted, match="stopped at step 30, saved"):
        run_on(first, timed(), corpus, "r", **stop_at(30))
    run_on(second, read_summary(Path("r"), "last").config, corpus, "r", mode="resume")
    trained = first.now - BEFORE_TRAINING_S + second.now
    assert 0.9 * 60 < trained <= 60


def test_more_time_is_used_by_a_run_whose_plan_would_end_before_a_check(corpus):
    """Of 60 minutes, given to a run that had 10 seconds of steps left, 59 were not used."""
    with pytest.raises(Interrupted):
        run_on(Machine(even), timed(), corpus, "r", **stop_at(60))
    config = load_config(read_summary(Path("r"), "last").config, ["train.minutes=30"])
    machine = Machine(lambda batch: 0.8 if batch < 30 else 8.0)
    run_on(machine, config, corpus, "r", mode="resume")
    assert machine.now + 60 > 0.9 * 30 * 60
    rates = {record["step"]: record["lr"] for record in metrics_of(Path("r")) if "lr" in record}
    assert rates[80] > 2 * rates[max(rates)]


def test_a_finished_run_trains_for_the_minutes_that_are_added(corpus):
    """Bug: it was refused; by more steps, its learning rate jumped to a third of the peak."""
    first = run_on(Machine(even), timed(), corpus, "r").step
    machine = Machine(half_as_fast_from_the_middle)
    saved = read_summary(Path("r"), "last").config
    config = load_config(saved, ["train.minutes=1.5"])
    with pytest.raises(Interrupted):
        run_on(machine, config, corpus, "r", mode="extend", **stop_at(70))
    machine.now += BEFORE_TRAINING_S
    saved = read_summary(Path("r"), "last").config
    outcome = run_on(machine, saved, corpus, "r", mode="resume")
    assert 0.85 * 90 < machine.now - BEFORE_TRAINING_S <= 90
    found = {record["step"]: record["lr"] for record in metrics_of(Path("r")) if "lr" in record}
    again, before = load_config("r/config.yaml"), found[first]
    schedule = Schedule(again)
    assert found == {step: schedule.lr(step - 1) for step in found}
    added = [schedule.lr(step) for step in range(first, outcome.step)]
    rise = added.index(max(added))
    assert before < added[0] < max(added) / 2, "it rises"
    assert 0.4 < max(added) / again.train.learning_rate < 0.8, "as in one run of all the steps"
    assert added[:rise] == sorted(added[:rise])
    assert added[rise:] == sorted(added[rise:], reverse=True)
    assert added[-1] < 0.1 * max(added)
    assert again.train.minutes is None
    assert first in dict(again.train.plans)
    windows = [schedule.shape(step)[1] for step in range(first, outcome.step)]
    assert set(windows) == {12}, "those of a run that is done stay long"
    train_run(again, corpus, Path("again"))
    assert saved_weights("again") == saved_weights("r")
    scored = [[r for r in metrics_of(Path(run)) if "val_loss" in r] for run in ("r", "again")]
    assert scored[0] == scored[1]
    assert schedule.is_due(first, again.train.eval_every)


@pytest.mark.parametrize("until", [7, 11])
def test_a_run_resumed_for_more_steps_is_repeated_by_its_config(corpus, until):
    """Bug: config.yaml had only the new number of steps, so its repeat had another schedule.

    Bug: the plans of the repeat changed which evaluations could become the best.
    """
    with suppress(Interrupted):
        train_run(small(train__eval_every="10 %"), corpus, Path("r"), **stop_at(until))
    for steps in (19, 29):
        more = [f"train.steps={steps}", "train.plans=null"]
        train_run(load_config("r/config.yaml", more), corpus, Path("r"), mode="resume")
    again = load_config("r/config.yaml")
    assert again.train.plans == ((0, 11), (until, 19), (19, 29))
    train_run(again, corpus, Path("again"))
    assert saved_weights("again") == saved_weights("r")
    index, other = (Path(run, "checkpoints/index.json").read_text() for run in ("r", "again"))
    assert index == other


def test_the_minutes_of_an_interrupted_run_are_those_of_the_whole_run(corpus, caplog):
    """Bug: with fewer than it had used it made one step, and did not say what they are."""
    caplog.set_level("INFO", "gpt")
    with pytest.raises(Interrupted):
        run_on(Machine(even), timed(), corpus, "r", **stop_at(30))
    saved = read_summary(Path("r"), "last").config
    less, more = (load_config(saved, [f"train.minutes={n}"]) for n in (0.3, 0.8))
    with pytest.raises(UsageError, match=r"train\.minutes 0\.3 is too short for one step: 2"):
        run_on(Machine(even), less, corpus, "r", mode="resume")
    run_on(Machine(even), more, corpus, "r", mode="resume")
    assert "the run has used 0.46 of 0.8 minutes" in caplog.text
    assert "plans" not in caplog.text


def test_a_run_whose_newest_checkpoint_is_damaged_makes_its_plans_again(corpus):
    """The plans that lay ahead stayed among the new ones, and no checkpoint could be read again."""
    config = timed(train__checkpoint_every=13, train__eval_every=1000)
    with pytest.raises(KeyboardInterrupt):
        run_on(Machine(half_as_fast_from_the_middle), config, corpus, "r", on_event=kill_at(41))
    newest = read_summary(Path("r"), "last")
    planned_at, _ = newest.config.train.plans[-1]
    assert planned_at > 0
    for step in range(planned_at, newest.step + 1):
        for weights in Path("r/checkpoints").glob(f"step-{step}/model.safetensors"):
            weights.write_bytes(b"damaged")
    run_on(Machine(uneven), newest.config, corpus, "r", mode="resume")
    replayed = load_config("r/config.yaml")
    assert read_summary(Path("r"), "last").finished
    train_run(replayed, corpus, Path("again"))
    assert saved_weights("again") == saved_weights("r")


@pytest.mark.parametrize("killed", [10, 43])
def test_a_run_killed_between_plans_ends_as_its_plans_say(corpus, killed):
    """Plans made before are kept, and what is planned after it repeats from the folder as well."""
    config = timed(train__checkpoint_every=7)
    machine = Machine(half_as_fast_from_the_middle)
    with pytest.raises(KeyboardInterrupt):
        run_on(machine, config, corpus, "r", on_event=kill_at(killed))
    saved = read_summary(Path("r"), "last").config
    machine.now = BEFORE_TRAINING_S
    run_on(machine, saved, corpus, "r", mode="resume")
    replayed = load_config("r/config.yaml")
    assert replayed.train.plans[: len(saved.train.plans)] == saved.train.plans
    train_run(replayed, corpus, Path("again"))
    assert metrics_of(Path("again")) == metrics_of(Path("r"))
    assert saved_weights("again") == saved_weights("r")


@st.composite
def planned(draw: st.DrawFn) -> Schedule:
    """A schedule with plans, each made at a step of the one before."""
    steps = draw(st.integers(2, 97))
    schedule = Schedule(
        small(
            model__T=12,
            train__first_window=4,
            train__steps=steps,
            train__warmup_steps=draw(st.integers(0, steps)),
            train__learning_rate=1.0,
            train__min_learning_rate=0.1,
        )
    )
    schedule.replan(0, steps)
    at = 0
    for _ in range(draw(st.integers(0, 5))):
        if at + 1 >= schedule.steps:
            break
        at = draw(st.integers(at + 1, schedule.steps - 1))
        schedule.replan(at, draw(st.integers(at + 1, at + 97)))
    return schedule


@given(planned(), st.data())
def test_a_new_plan_replaces_those_that_lie_ahead(schedule, data):
    plans, step = schedule.plans, data.draw(st.integers(1, schedule.steps))
    schedule.replan(step, step + data.draw(st.integers(1, 97)))
    stored = schedule.stored(small(train__steps=plans[0][1], train__warmup_steps=0))
    assert load_config(stored) == stored, "it can be read"
    assert schedule.plans[:-1] == tuple(plan for plan in plans if plan[0] < step)


@given(planned())
def test_the_learning_rate_never_jumps_and_ends_at_its_last(schedule):
    rates = [schedule.lr(step) for step in range(schedule.warmup_steps, schedule.steps)]
    assert rates == sorted(rates, reverse=True)
    if rates:
        assert rates[0] == schedule.peak
        assert schedule.lr(schedule.steps) == pytest.approx(schedule.floor)
    steepest = [1 / max(1, end - max(at, schedule.warmup_steps)) for at, end in schedule.plans]
    falls = [before - after for before, after in pairwise(rates)]
    assert max(falls, default=0) <= 1.01 * max(steepest) * (1 - 0.1) + 1e-9


@given(planned(), st.data())
def test_what_a_step_does_follows_from_the_plans_made_by_then(schedule, data):
    """A repeated run has all plans from its start."""
    plans = schedule.plans
    count = data.draw(st.integers(1, len(plans)))
    until = plans[count][0] if count < len(plans) else schedule.steps
    now = [(schedule.lr(step), schedule.shape(step)) for step in range(until)]
    schedule.plans = plans[:count]
    assert now == [(schedule.lr(step), schedule.shape(step)) for step in range(until)]


@pytest.mark.usefixtures("quick_choices")
def test_minutes_on_the_command_line(gpt, text_file):
    """Bug: a run of minutes could not be resumed for more steps, as README says; and made two."""
    small = ("model.T=12", "model.C=8", "model.n_layer=1", "model.ensemble=1", "train.batch_size=6")
    sizes = [part for each in (*small, "train.sample_length=0") for part in ("--set", each)]
    arguments = ("train", text_file, *sizes, "--device", "cpu", "--run-dir", "r")
    code, _, err = gpt(*arguments, "--minutes", "0.01")
    assert (code, "train.minutes 0.01 is too short for one step" in err) == (2, True), err
    few = ("--minutes", "9000", "--set", "train.max_steps=3")  # this process began long ago
    code, out, err = gpt(*arguments, *few, "--json")
    assert code == 0, err
    steps = json.loads(out)["step"]
    ended = load_config("r/config.yaml").train
    assert (ended.minutes, ended.steps, ended.plans[-1][1]) == (None, steps, steps)
    code, _, err = gpt("train", "--config", "r/config.yaml", "--run-dir", "again")
    assert code == 0, err
    assert saved_weights("again") == saved_weights("r")
    for both in (["train.minutes=1", "train.steps=5"], ["train={minutes: 1, steps: 5}"]):
        more = [part for change in both for part in ("--set", change)]
        code, _, err = gpt(*arguments, "--overwrite", *more)
        assert (code, "expected either --minutes or train.steps" in err) == (2, True)
    code, _, err = gpt("train", "--resume", "r")
    assert (code, "r is finished" in err) == (2, True)
    assert "--minutes 5, or --set train.steps=6" in err
    code, out, err = gpt("train", "--resume", "r", "--set", "train.steps=6", "--json")
    assert (code, json.loads(out)["step"]) == (0, 6), err
    resumed = load_config("r/config.yaml").train
    assert (resumed.steps, resumed.minutes, resumed.plans[-1]) == (6, None, (steps, 6))
    more = ("--minutes", "9000", "--set", "train.max_steps=8", "--json")
    code, out, err = gpt("train", "--resume", "r", *more)
    assert (code, json.loads(out)["step"]) == (0, 8), err
    code, _, err = gpt("train", "--resume", "r", *more)  # bug: each resume took one step more
    assert (code, "r is finished: train.max_steps 8" in err) == (2, True), err
    Path("m.yaml").write_text("train: {minutes: 0.01, sample_length: 0}\nmodel: {T: 12, C: 8}\n")
    chosen = ("train", text_file, "--config", "m.yaml", "--device", "cpu", "--set", "train.steps=3")
    assert gpt(*chosen, "--run-dir", "q")[0] == 0
    assert read_summary(Path("q"), "last").step == 3


@pytest.mark.usefixtures("quick_choices")
@pytest.mark.parametrize(("settings", "minutes"), [({}, 5.0), ({"train.steps": 2}, None)])
def test_a_text_alone_is_trained_on_for_five_minutes(text_file, settings, minutes):
    """Unless the steps are set: then all that is not set has its default."""
    tiny = {"model.T": 32, "model.C": 64, "model.n_layer": 2, "device": "cpu", "threads": 1}
    config, _ = api.estimate(text=text_file, settings=tiny | settings)
    assert config.train.minutes == minutes
    assert (config.train.steps == 2) == (minutes is None)
