"""Sweeps: which runs they train, that these are what they are alone, and how they are compared."""

import json
import math
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults.sweeps import killed_sweeps
from faults.work import Work, bits

import gpt as package
from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.config.yaml import to_yaml
from gpt.errors import Interrupted, UsageError
from gpt.reading.sources import open_source
from gpt.recipe.sweep import Load, run_sweep, specify
from gpt.recipe.sweep_spec import (
    SweepSpec,
    Trial,
    check_different,
    combinations,
    read_spec,
    write_spec,
)
from gpt.runs.read import read_summary
from gpt.text.cache import cache_dir
from gpt.text.corpus import load_corpus
from gpt.training import compiled, time_budget
from gpt.training.start import train_run
from tests.conftest import PANGRAM, metrics_of, small
from tests.test_sources import piped

SWEEP = Path("runs/small-sweep")
RATES = "train.learning_rate=1e-3,4e-3"


@pytest.fixture
def config_file(text_file: Path) -> Path:
    path = Path("small.yaml")
    train = {"train__steps": 5, "train__precision": "fp32", "threads": 1}
    path.write_text(to_yaml(small(data__source=str(text_file), sample__length=3, **train)))
    return path


@pytest.fixture
def load(text_file: Path) -> Load:
    """The text of any config."""
    return lambda config: load_corpus(open_source(str(text_file)))


def trials_of(base: Config | None, *changes: str, is_open: bool = True) -> list[Trial]:
    return [
        Trial(name=name, values=values, is_open=is_open,
              asked=load_config(base, [*changes, *(f"{k}={v}" for k, v in values.items())]))
        for name, values in combinations(changes).items()
    ]  # fmt: skip


def runs_of(sweep: "package.api.Sweep") -> dict[str, Any]:
    return {Path(run.run).name: run for each in sweep.combinations for run in each.runs}


def test_a_sweep_is_the_product_of_its_lists():
    changes = ["train.steps=7", RATES, "model.qkv_bias=true", "train.optimizer=muon,adamw"]
    assert [tuple(values.values()) for values in combinations(changes).values()] == [
        *[("1e-3", "muon"), ("1e-3", "adamw"), ("4e-3", "muon"), ("4e-3", "adamw")],
    ]
    for trial in trials_of(None, *changes):
        config, rate = trial.asked, float(trial.values["train.learning_rate"])
        assert (config.train.steps, config.model.qkv_bias) == (7, True)
        assert config.train.learning_rate == rate
        assert config.train.optimizer == trial.values["train.optimizer"]
    seeded = combinations([*changes, ("seed", [5, 6, 7])])
    assert [values["seed"] for values in seeded.values()] == ["5", "6", "7"] * 4
    assert [*seeded][4] == "lr-1e-3,optimizer-adamw,seed-6"
    assert combinations([RATES, "train.learning_rate=5e-3"]) == {"run-1": {}}, "the last counts"


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ("train.eval_every=10 %, 20 %,7", ["10 %", "20 %", "7"]),
        ("train.first_window=null,32", ["null", "32"]),
        ("train.learning_rate=[1e-3, 0.002]", ["0.001", "0.002"]),
        ("train.optimizer=[muon, adamw]", ['"muon"', '"adamw"']),
        ("data.include=src/*.md,b.txt", None),
        ("data.source=a,b.txt", None),
        ('data.column=", "', None),
        ("train.init_from=runs/x-sweep/lr-1e-3,seed-1", None),
    ],
)
def test_what_a_key_takes_as_it_stands_is_one_value(change, values):
    """The text `a,b` in a file's name, and the list of data.include, are no lists of runs."""
    (key, _, _) = change.partition("=")
    found = [each.get(key) for each in combinations([change]).values()]
    assert found == (values or [None])


def test_each_run_is_what_it_is_alone_and_the_means_are_of_their_val_losses(text_file):
    settings = {"train.learning_rate": [1e-3, 4e-3], "threads": 1}
    config, told = small(train__steps=5), list[Any]()
    sweep = package.sweep(config, text=text_file, settings=settings, seeds=3, on_event=told.append)
    assert sweep.sweep == "runs/pangram-sweep"
    corpus = load_corpus(open_source(str(text_file)))
    losses: dict[float, list[float]] = {}
    for rate in (1e-3, 4e-3):
        for seed in (1337, 1338, 1339):
            alone = small(train__steps=5, train__learning_rate=rate, seed=seed, threads=1)
            outcome = train_run(alone, corpus, Path("alone"), mode="overwrite")
            name = f"lr-{rate},seed-{seed}"
            swept = Path(sweep.sweep, name)
            assert bits(swept) == bits(Path("alone"))
            assert runs_of(sweep)[name].val_loss == outcome.best_val_loss
            assert [e["step"] for e in told if (e["run"], e["kind"]) == (name, "step")] == [4, 5]
            losses.setdefault(rate, []).append(outcome.best_val_loss)
    expected = sorted((np.mean(of_rate), str(rate)) for rate, of_rate in losses.items())
    for result, (mean, rate) in zip(sweep.combinations, expected, strict=True):
        assert result.values == {"train.learning_rate": rate}
        assert result.mean == pytest.approx(mean)
        deviation = np.std(losses[float(rate)], ddof=1)
        assert result.standard_error == pytest.approx(deviation / math.sqrt(3))


def test_another_machine_resumes_the_sweep_with_its_threads(gpt, config_file, set_threads):
    """The digits depend on the threads."""
    command = ("train", "--config", config_file, "--set", "threads=auto", "--seeds", 2)
    set_threads(4)
    out = gpt(*command)[1]
    assert gpt("runs", "--yes", "--delete", "small-sweep/seed-1338")[0] == 0
    set_threads(1)
    assert gpt("train", "--resume", "small-sweep")[:2] == gpt(*command)[:2] == (0, out)
    lines = (SWEEP / "seed-1338/provenance.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["threads"] == 4


def test_a_sweep_killed_again_and_again_ends_with_the_same_runs(text_file, tmp_path):
    work = Work(tmp_path, load_corpus(open_source(str(text_file))))
    tally = killed_sweeps(work, kills=1, seed=3)
    assert (tally.failures, tally.tries) == ([], 1)


def test_a_stop_saves_the_run_and_the_same_command_finishes_the_sweep(text_file):
    config = small(train__steps=23, threads=1, data__source=str(text_file))
    unstopped = package.sweep(config, seeds=3, run_dir="unstopped")
    steps = list[dict[str, Any]]()

    def stop_in_the_second() -> bool:
        return sum(event["kind"] == "step" for event in steps) == 13

    stopping = {"on_event": steps.append, "should_stop": stop_in_the_second}
    with pytest.raises(Interrupted, match=r"sweep stopped is saved; to resume"):
        package.sweep(config, seeds=3, run_dir="stopped", **stopping)
    assert metrics_of(Path("stopped/seed-1338"))[-1]["step"] == 20
    finished = Path("stopped/seed-1337/metrics.jsonl").stat().st_mtime_ns
    sweep = package.sweep(config, seeds=3, run_dir="stopped")
    assert Path("stopped/seed-1337/metrics.jsonl").stat().st_mtime_ns == finished
    assert sweep.combinations[0].mean == unstopped.combinations[0].mean
    for name in runs_of(sweep):
        assert bits(Path("stopped", name)) == bits(Path("unstopped", name))


def test_a_run_that_fails_is_told_and_the_others_are_trained(gpt, config_file):
    """One has no memory for its model, one diverges, and then one is damaged."""
    values = ("--set", "model.C=24,999999", "--set", "train.learning_rate=1e-3,1e3")
    values += ("--set", "train.optimizer=adamw", "--set", "train.weight_decay=1")
    values += ("--set", "train.steps=9", "--set", "train.warmup_steps=0")
    code, out, _ = gpt("train", "--config", config_file, *values, "--json")
    told = json.loads(out)["combinations"]
    assert code == 1
    assert [each["mean"] is None for each in told] == [False, True, True, True]
    assert told[0]["values"] == {"model.C": "24", "train.learning_rate": "1e-3"}
    errors = {tuple(each["values"].values()): each["runs"][0]["error"] for each in told}
    assert "rolled back 3 times" in errors["24", "1e3"]
    assert "free" in errors["999999", "1e-3"]
    for is_damaged in (False, True):
        code, out, err = gpt("train", "--config", config_file, *values)
        assert code == 1, err
        assert "failed:  runs/small-sweep/C-999999,lr-1e-3: training" in out, err
        assert "C-999999,lr-1e-3: training" in err, "what failed is tried again"
        assert "C-24,lr-1e-3: training" not in err, "what is finished is not"
        assert ("C-24,lr-1e-3 cannot be resumed" in out) == is_damaged
        for file in SWEEP.glob("C-24,lr-1e-3/checkpoints/*/*.json"):
            file.write_text("{")


def test_runs_that_differ_in_how_they_are_trained_are_of_one_chosen_model(text_file, load):
    """Each combination measured and chose for itself, so models of different shapes were compared.

    Values of the model itself are each chosen for.
    """
    base = Config.model_validate({"threads": 1, "data": {"source": str(text_file)}})
    trials = trials_of(base, "train.learning_rate=null,1e-3,2e-3", "model.C=88,104")
    depths = iter((3, 5, 7))

    def choose(config: Config) -> Config:
        C = config.model.C
        return load_config(config, [f"model.n_layer={next(depths)}", f"train.learning_rate={C}e-4"])

    configs = [trial.config for trial in specify(trials, choose, load, lambda: False).runs]
    assert [(c.model.C, c.model.n_layer, c.train.learning_rate) for c in configs] == [
        *((88, 3, 88e-4), (104, 5, 104e-4)),
        *((88, 3, 1e-3), (104, 5, 1e-3), (88, 3, 2e-3), (104, 5, 2e-3)),
    ]


def test_a_stop_is_obeyed_while_runs_are_chosen(text_file, load):
    """Of twenty combinations that took two minutes, after a notice that it stops."""
    base, chosen = small(train__steps=5, data__source=str(text_file)), list[Config]()
    trials = trials_of(base, "seed=1,2,3")

    def choose(config: Config) -> Config:
        chosen.append(config)
        return config

    with pytest.raises(Interrupted, match="before the first run began"):
        run_sweep(SWEEP, trials, choose=choose, load=load, should_stop=lambda: len(chosen) == 1)
    assert not SWEEP.exists()


def test_a_sweep_that_another_began_meanwhile_is_not_taken_for_ones_own(text_file, load):
    """Runs of that name, by other configs, would be found finished and be compared."""

    def asked(steps: int) -> list[Trial]:
        return trials_of(small(train__steps=steps, data__source=str(text_file)))

    def begin_another(config: Config) -> Config:
        run_sweep(SWEEP, asked(4), load=load)
        return config

    with pytest.raises(UsageError, match="holds a sweep with other"):
        run_sweep(SWEEP, asked(5), choose=begin_another, load=load)


def test_what_follows_from_the_steps_follows_from_those_that_fit(text_file):
    """Bug: once stopped, a run of minutes had a warmup of 100 of its 100 steps."""
    data = {"source": str(text_file), "column": "\n\N{CAT FACE}"}
    base = Config.model_validate({"train": {"minutes": 1.0}, "data": data})
    write_spec(Path(), SweepSpec(runs=[Trial(name="r", values={}, asked=base, config=base)]))
    config = read_spec(Path()).runs[0].config
    assert config == base
    assert load_config(config, ["train.steps=50"]).train.warmup_steps == 5


def test_a_run_that_was_planned_is_still_of_its_sweep(gpt, config_file, monkeypatch):
    """Bug: limited evaluations and the choice not to compile counted as other settings."""
    monkeypatch.setattr(time_budget, "CURVE_PART", 0.0)
    monkeypatch.setattr(compiled, "MIN_COMPILED_S", math.inf)
    monkeypatch.setattr(compiled, "compile_mode", lambda setting, device: setting)  # as on CUDA
    minutes = ("--minutes", 9, "--set", "train.max_steps=7")
    command = ("train", "--config", config_file, *minutes, "--seeds", 2, "--json")
    code, out, _ = gpt(*command)
    train = read_summary(SWEEP / "seed-1337").config.train
    assert (train.compile, train.eval_characters) == ("off", time_budget.MIN_EVAL_CHARACTERS)
    assert (code, *gpt(*command)[:2]) == (0, 0, out)


def test_a_sweep_of_standard_input_is_resumed(gpt, config_file, text_file, monkeypatch):
    """Bug: every run trained on what was piped in, also one of a file."""
    sources = f'data.source=[["{text_file}"], ["-"]]'
    command = ("train", "--config", config_file, "--set", sources, "--run-dir", "piped", "--json")
    assert gpt("train", "--config", config_file)[0] == 0
    alone = read_summary(Path("runs/small")).val_loss
    text = "Once, a pipe. " * 29
    piped(monkeypatch, text.encode())
    code, out, err = gpt(*command)
    assert code == 0, err
    assert "texts or val splits of the runs differ" in err
    told = json.loads(out)["combinations"]
    losses = {each["values"]["data.source"]: each["mean"] for each in told}
    assert losses[f'["{text_file}"]'] == alone != losses['["-"]']
    for folder in (Path("piped"), Path("piped/source")):
        assert (folder / "standard_input.txt").read_text() == text
    shutil.rmtree(cache_dir())
    piped(monkeypatch, b"")
    assert gpt("runs", "--yes", "--delete", "piped/source")[0] == 0
    assert gpt("train", "--resume", "piped", "--json")[:2] == (0, out)
    assert gpt("runs", "--yes", "--delete", "piped")[0] == 0
    assert not Path("piped").exists()


def test_a_sweep_is_never_overwritten(gpt, config_file):
    """Bug: the old sweep was deleted before the new one had a checkpoint; both could be lost."""
    command = ("train", "--config", config_file, "--seeds", 2)
    assert gpt(*command)[0] == 0
    before = {path: path.read_bytes() for path in SWEEP.rglob("*") if path.is_file()}
    for again in (command, ("train", "--config", config_file, "--run-dir", SWEEP)):
        code, _, err = gpt(*again, "--overwrite")
        assert (code, "delete it by gpt runs --delete" in " ".join(err.split())) == (2, True), err
    assert {path: path.read_bytes() for path in SWEEP.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("changes", [{"model": {"n_layer": 4}}, {"train": {"batch_size": 12}}])
def test_what_is_set_to_a_default_is_not_what_was_left_open(text_file, load, changes):
    """For a model of four layers, the losses of an old sweep of two were printed."""
    data = {"data": {"source": str(text_file)}, "threads": 1}

    def choose(config: Config) -> Config:
        return small(train__steps=2, data__source=str(text_file))

    def sweep(config: Config) -> None:
        run_sweep(SWEEP, trials_of(config), choose=choose, load=load)

    for _ in range(2):
        sweep(Config.model_validate(data))
    with pytest.raises(UsageError, match="holds a sweep with other"):
        sweep(Config.model_validate(data | changes))
    configs = {"a": Config.model_validate(data), "b": Config.model_validate(data | changes)}
    for is_open in (True, False):
        trials = [
            Trial(name=name, values={}, asked=config, is_open=is_open)
            for name, config in configs.items()
        ]
        with nullcontext() if is_open else pytest.raises(UsageError, match="runs that differ"):
            check_different(trials)


def test_a_run_that_is_finished_but_not_in_its_index_is_finished(gpt, config_file):
    """Killed between its last checkpoint and the index, it failed: it had no steps left."""
    command = ("train", "--config", config_file, "--seeds", 2)
    code, out, _ = gpt(*command)
    index = SWEEP / "seed-1338/checkpoints/index.json"
    index.write_text('{"last":0,"best":null}')
    assert (code, *gpt(*command)[:2]) == (0, 0, out)
    index.unlink()
    assert gpt(*command)[:2] == (0, out)


def test_a_run_trained_with_other_settings_is_not_averaged(gpt, config_file):
    """Bug: a run that was resumed by its name for more steps changed the mean of its sweep."""
    command = ("train", "--config", config_file, "--seeds", 2)
    assert gpt(*command)[0] == 0
    assert gpt("train", "--resume", SWEEP / "seed-1338", "--set", "train.steps=17")[0] == 0
    code, out, _ = gpt(*command)
    assert (code, "train.steps (5 to 17); delete the" in out) == (1, True)
    assert gpt("runs", "--delete", SWEEP / "seed-1338", "--yes")[0] == 0
    assert gpt(*command)[0] == 0


@pytest.mark.parametrize("name", ["../../outside", "..", "/tmp/outside", "a\x1b[31m", ""])
def test_a_strangers_sweep_writes_only_into_its_folder(name, gpt, config_file):
    """Bug: a name in sweep.json could be a path; it was also printed with its escapes."""
    assert gpt("train", "--config", config_file, "--seeds", 2)[0] == 0
    path = SWEEP / "sweep.json"
    tree = json.loads(path.read_text())
    for runs in ([tree["runs"][0] | {"name": name}], []):  # Bug: no runs ended in an IndexError
        path.write_text(json.dumps({"runs": runs}))
        code, _, err = gpt("train", "--resume", SWEEP)
        assert (code, "expected the specification of a sweep" in err) == (2, True)
        assert "\x1b" not in err


def test_the_command_prints_the_means_and_finds_its_runs(gpt, config_file):
    code, out, err = gpt("train", "--config", config_file, "--set", RATES, "--seeds", 2)
    assert code == 0, err
    heading, first, second, *_ = out.strip().splitlines()
    words = "learning_rate mean val loss standard error seed 1337 seed 1338"
    assert heading.split() == words.split()
    assert float(first.split()[1]) <= float(second.split()[1])
    assert max(map(len, out.partition("watch:")[0].splitlines())) <= 80
    name = out.partition("sample:  gpt sample ")[2].strip()
    assert gpt("sample", name, "--length", 3)[0] == 0
    assert gpt("sample", Path(name).relative_to("runs"), "--length", 3)[0] == 0
    assert gpt("sample", "--length", 3)[0] == 0, "the newest run is one of them"
    listed = json.loads(gpt("runs", "--json")[1])["runs"]
    assert {run["name"] for run in listed} == {
        f"small-sweep/lr-{rate},seed-{seed}" for rate in ("1e-3", "4e-3") for seed in (1337, 1338)
    }
    assert "small-sweep/lr-1e-3,seed-1338 " in gpt("runs")[1]
    again = gpt("train", "--resume")
    assert (again[0], again[1]) == (0, out), "the newest run's sweep, of which all is finished"
    code, _, err = gpt("sample", "small-sweep")
    assert (code, "small-sweep is a sweep; expected one of its runs" in err) == (2, True)
    assert gpt("runs", "--yes", "--delete", "small-sweep")[:2] == (0, "deleted runs/small-sweep\n")
    assert not SWEEP.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "train.stpes=5,6"], "did you mean train.steps?"),
        (["--set", "seed=1,2", "--seeds", "2"], "either --seeds or several values of seed"),
        (["--seeds", "1000000000"], "at most 1,000 runs, got 1,000,000,000"),
        (["--set", "model.value_size=10,null"], "null stands for the default value"),
        (["--seeds", "2", "--set", "train.init_from=none"], "none: expected the folder"),
        (["--seeds", "2", "--dry-run"], "--dry-run does not work with a sweep"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_trains(
    gpt, config_file, arguments, message
):
    code, out, err = gpt("train", "--config", config_file, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert not list(SWEEP.glob("*")), "nothing was begun"


def test_another_command_or_text_does_not_resume_a_sweep(gpt, config_file, text_file):
    command = ("train", "--config", config_file, "--seeds", 1)
    assert gpt(*command)[0] == 0
    for change in (("--set", RATES), ("--seeds", 2), ("--set", "train.steps=6")):
        code, _, err = gpt(*command, *change)
        assert (code, "small-sweep holds a sweep with other runs" in err) == (2, True), err
    text_file.write_text(PANGRAM * 31)
    for again in (command, ("train", "--resume", "small-sweep")):
        code, out, _ = gpt(*again)
        assert (code, "has changed since the sweep runs/small-sweep began" in out) == (1, True)
    for change in (("--set", "train.steps=6"), ("--minutes", 0)):  # 0 minutes were ignored
        code, _, err = gpt("train", "--resume", "small-sweep", *change)
        assert (code, "whose settings cannot change" in err) == (2, True)
    (SWEEP / "sweep.json").write_text("{}")
    code, _, err = gpt(*command)
    assert (code, "expected the specification of a sweep" in err) == (2, True)


def test_a_sweep_leaves_what_is_no_sweep_alone(gpt, config_file):
    assert gpt("train", "--config", config_file)[0] == 0
    for folder, told in (("runs/small", "exists; "), (".", "is left alone")):
        code, _, err = gpt("train", "--config", config_file, "--seeds", 2, "--run-dir", folder)
        assert (code, told in " ".join(err.split())) == (2, True)
    assert not Path("runs/small/sweep.json").exists()
