"""Fine-tuning: a new run that begins with the weights of another, on another text."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpt as package
from gpt import api
from gpt.api.new_run import NewRun
from gpt.config.load import load_config
from gpt.config.train_config import MUON_RATIO
from gpt.errors import ConfigError, Interrupted, UsageError
from gpt.model.ensemble import make_model, members_of
from gpt.reading.sources import open_source
from gpt.runs.fine_tuning import RATE_FACTOR
from gpt.runs.format import CheckpointData
from gpt.runs.weights import adapted_weights, weights_of
from gpt.text.corpus import load_corpus
from gpt.text.vocabulary import BYTES, Vocabulary
from tests.conftest import PANGRAM, load, metrics_of, saved_weights, small, stop_at, trained

OLD, NEW = PANGRAM * 29, "Thé quick brown fox, Ω and 7 lazy dogs jump.\n" * 53


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The run of these settings, trained once."""
    folder, made = tmp_path_factory.mktemp("old"), dict[str, Path]()

    def run(**changes: Any) -> Path:
        name = "-".join(f"{key}={value}" for key, value in changes.items()) or "plain"
        if name not in made:
            made[name] = trained(folder / name, OLD, **changes)
        return made[name]

    return run


@pytest.fixture
def new_text(tmp_path: Path) -> str:
    (tmp_path / "new.txt").write_text(NEW, "utf-8")
    return str(tmp_path / "new.txt")


# saves steps 0 and 11, because only the two newest checkpoints are kept
SAVE_STEP_0 = ("train.eval_every=11", "train.checkpoint_every=11")


def fine_tuned(run: Path, text: str, *settings: str, **options: Any) -> Path:
    """A run of 11 steps that began with that one's weights."""
    every = ["device=cpu", "train.eval_every=4", "train.checkpoint_every=4"]
    changes = [*every, "train.sample_length=0", *settings]
    return Path(package.train(text=text, settings=changes, init_from=run, **options).run)


@pytest.mark.parametrize(
    ("trained_with", "settings"),
    [
        ({}, []),
        ({}, ["model.T=19"]),
        ({"model__positions": "learned"}, ["model.T=11"]),
        ({"model__ngram": 1, "model__qkv_bias": True}, []),
    ],
    ids=["rotary", "longer T", "learned positions, shorter T", "no n-grams"],
)
@pytest.mark.precision
def test_at_step_0_no_logit_of_an_old_character_differs(runs, new_text, trained_with, settings):
    """What the old model predicts of old characters, on any text of them, is left as it is."""
    run = runs(**trained_with)
    old = package.load(run)
    new = package.load(fine_tuned(run, new_text, *settings, *SAVE_STEP_0), 0)
    kept = [new.vocabulary.characters.index(c) for c in old.vocabulary.characters]
    for text in ("sphinx", "my vow; lazy dog"[-11:]):
        torch.testing.assert_close(
            new.logits(text)[:, kept], old.logits(text), atol=1e-5, rtol=0, msg=text
        )


def test_the_members_of_an_ensemble_begin_with_their_own_weights(runs, new_text):
    run = runs(model__ensemble=2)
    before, after = load(run, "best"), load(fine_tuned(run, new_text, *SAVE_STEP_0), "0")
    for old, new in zip(members_of(before), members_of(after), strict=True):
        torch.testing.assert_close(old.blocks.state_dict(), new.blocks.state_dict())
    with pytest.raises(ConfigError, match=r"cannot change model\.ensemble \(2 to 3\)"):
        package.train(text=new_text, init_from=run, settings=["model.ensemble=3"])


def test_a_new_character_is_as_likely_as_the_mean(runs, new_text):
    """Its rows are the means of the old rows; the vocabulary is that of both texts."""
    old = package.load(runs())
    new = package.load(fine_tuned(runs(), new_text, *SAVE_STEP_0), 0)
    assert new.vocabulary == Vocabulary.of(OLD + NEW)
    kept = [new.vocabulary.characters.index(c) for c in old.vocabulary.characters]
    added = [i for i, c in enumerate(new.vocabulary.characters) if c in set(NEW) - set(OLD)]
    expected = old.logits("the dog")
    logits = new.logits("the dog")
    torch.testing.assert_close(logits[:, kept], expected, atol=1e-5, rtol=0)
    mean = expected.mean(-1, keepdim=True).expand(-1, len(added))
    torch.testing.assert_close(logits[:, added], mean, atol=1e-5, rtol=0)
    tables = [(m.token_embedding, *m.ngram_embeddings) for m in (old.module, new.module)]
    for before, after in zip(*tables, strict=True):
        torch.testing.assert_close(after.weight[added[0]], before.weight.mean(0))


def test_bytes_keep_their_rows(new_text):
    config, old = small(), BYTES
    model = make_model(config.model, len(old), seed=3)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(5))
    data = CheckpointData(0, config, old, weights_of(model))
    new = load_corpus(open_source(new_text), vocabulary=old, extends=True).vocabulary
    assert new == old
    after = adapted_weights(data, config.model, new)
    for name, before in data.weights.items():
        np.testing.assert_array_equal(after[name], before, err_msg=name)


def test_step_0_is_evaluated_and_can_be_the_best(runs):
    """Fine-tuning that only makes the model worse ended with its first, worse evaluation.

    Bug: the loss of step 0 was assumed to be that of guessing.
    """
    Path("old.txt").write_text(OLD, "utf-8")
    rates = ["train.learning_rate=9", "train.muon_learning_rate=9", "train.warmup_steps=0"]
    run = fine_tuned(runs(), "old.txt", *rates)
    first, *later = [r["val_loss"] for r in metrics_of(run) if "val_loss" in r]
    assert first == pytest.approx(package.load(runs()).loss(OLD[int(0.9 * len(OLD)) :]), rel=1e-5)
    assert first < min(later)
    assert package.load(run).step == 0


def test_it_is_ahead_of_new_weights_at_every_evaluation(runs):
    text = "Jackdaws love my big sphinx of quartz; 2 lazy dogs judge my vow.\n" * 29
    fresh = trained(Path("fresh"), text)
    tuned = fine_tuned(runs(train__steps=60), "fresh/text.txt", "train.steps=11")
    losses = [[r["val_loss"] for r in metrics_of(run) if "val_loss" in r] for run in (tuned, fresh)]
    assert len(losses[0]) == 4
    assert all(a < b for a, b in zip(*losses, strict=True)), losses


def test_what_is_not_set_is_the_old_runs_but_at_lower_rates(runs, new_text):
    run = runs(train__beta2=0.95, model__character_dropout=0.07)
    old = package.load(run).config
    changed = ["model.T=7", "model.character_dropout=0.2", "train.learning_rate=1e-3"]
    new = package.load(fine_tuned(run, new_text, *changed)).config
    shape = old.model.model_copy(update={"T": 7, "character_dropout": 0.2})
    assert new.model == shape
    assert (new.train.batch_size, new.train.beta2) == (6, 0.95)
    assert new.train.learning_rate == 1e-3
    assert new.train.muon_learning_rate == 1e-3 * MUON_RATIO
    assert new.train.min_learning_rate == RATE_FACTOR * old.train.min_learning_rate
    assert new.train.init_from == str(run)


@pytest.mark.parametrize(
    ("settings", "minutes", "expected"),
    [
        ([], None, {"steps": 41, "max_steps": None, "patience": 3, "eval_every": "10 %"}),
        (["train.patience=5", "train.eval_every=7"], None, {"patience": 5, "eval_every": 7}),
        (["train.patience=null"], None, {"steps": 41, "patience": None}),
        (["train.steps=900"], None, {"steps": 900, "patience": None, "eval_every": 250}),
        ([], 9.0, {"max_steps": 41, "patience": 3, "eval_every": "10 %"}),
        (["train.max_steps=77"], 9.0, {"max_steps": 77, "patience": 3}),
    ],
)
def test_fine_tuning_ends_before_it_overfits_unless_that_is_set(
    runs, settings, minutes, expected, monkeypatch
):
    """Bug: it made as many steps as the run it began with; the val loss doubled on the way."""
    Path("new.txt").write_text(NEW, "utf-8")
    passes = (41 * 6 * 13 + 5) / len(load_corpus(open_source("new.txt")).train)
    monkeypatch.setattr("gpt.api.new_run.FINE_TUNING_PASSES", passes)
    run = runs(train__steps=60)
    new = NewRun(None, "new.txt", settings, minutes, run)
    config, _, _ = new.prepare(new.resolve(), lambda: 0.0)
    train = config.train.model_dump()
    assert {key: train[key] for key in expected} == expected


def test_the_command_says_at_which_step_it_stopped_and_why(runs, gpt):
    """Bug: "all steps done", though the best step was long before."""
    Path("old.txt").write_text(OLD, "utf-8")
    changes = ["device=cpu", "train.learning_rate=9", "train.warmup_steps=0", "train.eval_every=1"]
    options = [part for change in [*changes, "sample.length=3"] for part in ("--set", change)]
    code, out, err = gpt("train", "old.txt", "--init-from", runs(), *options)
    assert code == 0, err
    assert "stopped at step 3 after" in out
    assert "has not improved since step 0, which is the checkpoint that `gpt sample` uses" in out
    assert "fine-tuning for at most 11 steps" in err


def test_a_setting_that_is_null_has_its_default_not_the_old_runs():
    def inherit(run: str) -> dict[str, Any]:
        return {"model.C": 64, "train.first_window": 16, "train.batch_size": 3}

    Path("x.yaml").write_text("{model: , train: {init_from: old, first_window: null}}")
    config = load_config("x.yaml", inherit=inherit)
    assert (config.model.C, config.train.batch_size) == (64, 3)
    assert config.train.first_window is None


@pytest.mark.parametrize(
    ("trained_with", "settings", "message"),
    [
        ({}, ["model.C=32", "model.n_head=2"], r"cannot change model\.C \(24 to 32\), model\.n_h"),
        (
            {"model__positions": "learned"},
            ["model.T=17"],
            r"model\.T: expected at most 13, the number of position .*, got 17",
        ),
        (
            {"data__vocabulary": "bytes"},
            ["data.vocabulary=characters"],
            r'data\.vocabulary \("bytes" to "characters"\)',
        ),
    ],
)
def test_a_config_that_contradicts_the_model_is_refused(
    runs, new_text, trained_with, settings, message
):
    run = runs(**trained_with)
    with pytest.raises(ConfigError, match=message):
        package.train(text=new_text, init_from=run, settings=settings)
    with pytest.raises(ConfigError, match=message):  # before anything is tried
        api.estimate(text=new_text, init_from=run, settings=settings)


@pytest.mark.precision
def test_it_resumes_bit_for_bit_without_the_run_that_it_began_with(runs, new_text):
    """Resuming looked for that run's vocabulary."""
    whole = fine_tuned(runs(), new_text, run_dir="whole")
    shutil.copytree(runs(), "old")
    with pytest.raises(Interrupted):
        fine_tuned(Path("old"), new_text, run_dir="stopped", **stop_at(10))
    shutil.rmtree("old")
    package.resume("stopped")
    assert saved_weights("stopped") == saved_weights(whole)
    assert metrics_of(Path("stopped")) == metrics_of(whole)


def test_the_provenance_tells_which_weights_it_began_with(runs, new_text):
    run = fine_tuned(runs(), new_text)
    (line,) = (run / "provenance.jsonl").read_text("utf-8").splitlines()
    step = package.load(runs()).step
    weights = (runs() / "checkpoints" / f"step-{step}" / "model.safetensors").read_bytes()
    told = {key: value for key, value in json.loads(line).items() if key.startswith("init_from")}
    assert told == {
        "init_from": str(runs()),
        "init_from_step": step,
        "init_from_sha256": hashlib.sha256(weights).hexdigest(),
    }


def test_what_a_run_learns_from_is_not_overwritten_by_it(runs, text_file):
    """The original run was deleted, and the new one could not be started without it."""
    original = shutil.copytree(runs(), "original")
    settings = [f"train.init_from=../{Path.cwd().name}/original", "train.steps=5"]
    refused = r"overwrite=True would delete .*, which train\.init_from needs"
    with pytest.raises(UsageError, match=refused):
        package.train(text=text_file, settings=settings, run_dir="original", overwrite=True)
    assert load(original)


def test_a_val_split_that_the_other_run_trained_on_is_told(text_file, caplog):
    """A short run makes a long text's val split smaller: the next run's val loss was too low.

    Bug: with whole documents, a smaller val was taken for the end of the old val.
    """
    few = {"train.steps": 2, "model.T": 13, "model.C": 24, "model.n_layer": 1, "device": "cpu"}
    few |= {"train.sample_length": 0}

    def told(seed: int = 1337, run: str = "first", **data: object) -> str:
        caplog.clear()
        changes = {f"data.{name}": value for name, value in data.items()} | {"seed": seed}
        package.train(text=text_file, settings=few | {"train.init_from": run} | changes)
        return "".join(r.getMessage() for r in caplog.records if "val losses" in r.getMessage())

    settings = few | {"data.val_fraction": 0.2}
    package.train(text=text_file, settings=settings, run_dir="first")
    expected = (
        "train.init_from: first may have been trained on text of the new run's val split, so val "
        'losses may be too low; to keep the old val split, add settings=["data.val_fraction=0.2"]'
    )
    assert told(val_fraction=0.3) == expected
    assert told(val_fraction=0.2) == told(val_fraction=0.1) == ""
    shutil.copy(text_file, "other.txt")
    assert told(val_source="other.txt") == ""
    lines = {"split": "documents", "documents": "lines"}
    whole = {f"data.{name}": value for name, value in lines.items()} | {"data.val_fraction": 0.2}
    package.train(text=text_file, settings=few | whole, run_dir="lines")
    assert told(run="lines", val_fraction=0.2, **lines) == ""
    assert told(run="lines", val_fraction=0.1, **lines).endswith('"data.val_fraction=0.2"]')
    assert told(7, "lines", val_fraction=0.2, **lines).endswith('"seed=1337"]')


def test_the_command_tells_what_is_new_and_the_loss_before_training(runs, gpt):
    Path("new.txt").write_text(NEW + "\x1b[2J" + OLD, "utf-8")
    few = ["--set", "train.steps=3", "--set", "device=cpu", "--set", "sample.length=3"]
    few += ["--set", "model.T=17"]
    code, out, err = gpt("train", "new.txt", "--init-from", runs(), *few)
    assert code == 0, err
    step, V = package.load(runs()).step, len(set(OLD))
    assert f"step {step}: 8 new characters" in err
    assert f"characters, vocabulary of {V + 8};" in err
    assert "step 0: val " in err
    assert "\x1b" not in out + err
    config = package.load("new").config
    assert config.train.init_from == str(runs())
