"""Runs of earlier versions: what still loads, and which settings are refused."""

import json
from pathlib import Path

import pytest

import gpt as package
from gpt.config.load import load_config
from gpt.errors import ConfigError
from tests.conftest import rehash, small

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n" * 60


def trained_with(key: str, value: object, run: str) -> None:
    """Train a run, and store `value` in its checkpoints as an old version did."""
    package.train(small(train__steps=2), text="text.txt", run_dir=run)
    section, _, name = key.partition(".")
    for path in Path(run).glob("checkpoints/*/config.json"):
        tree = json.loads(path.read_text())
        tree[section][name] = value
        path.write_text(json.dumps(tree))
        rehash(path.parent)


def test_a_distilled_run_is_sampled_evaluated_and_fine_tuned_but_not_resumed(tmp_path, gpt):
    Path("text.txt").write_text(TEXT)
    trained_with("train.distill", "runs/teacher", "student")
    trained_with("train.distill", None, "plain")
    samples = [
        gpt("sample", run, "--length", "3", "--seed", "1")[:2] for run in ("student", "plain")
    ]
    assert samples[0] == samples[1] == (0, samples[1][1])
    assert gpt("eval", "student")[0] == 0
    few = ("--set", "train.steps=3")
    assert gpt("train", "text.txt", "--init-from", "student", *few)[0] == 0
    code, _, err = gpt("train", "--resume", "student", *few)
    assert (code, "commit 93286f7 is the last that can resume it" in err) == (2, True)
    assert package.load("student", "last").step == 2
    assert gpt("train", "--resume", "plain", *few)[0] == 0


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("model.counts", "leave it out"),
        ("model.window_counts", "leave it out"),
        ("model.attention_window", "set model.T instead"),
        ("model.exportable", "leave it out"),
        ("data.bad_records", "correct or remove it"),
        ("data.max_vocabulary", "set data.vocabulary=bytes"),
        ("train.distill", "keep the ensemble"),
        ("train.beta1", "leave it out"),
        ("sample.presence_penalty", "higher sample.temperature"),
    ],
)
def test_removed_settings_are_refused_with_what_to_do(key, instead, tmp_path, gpt):
    with pytest.raises(ConfigError, match=instead):
        load_config(None, [f"{key}=5"])
    path = tmp_path / "old.yaml"
    section, _, name = key.partition(".")
    path.write_text(f"{section}: {{{name}: 5}}\n")
    code, _, err = gpt("train", "--config", path)
    assert (code, instead in err) == (2, True)
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value", "commit"),
    [
        ("data.max_vocabulary", None, None),
        ("data.max_vocabulary", 7, "93286f7"),
        ("model.counts", 0, None),
        ("model.counts", 2, "7050005"),
    ],
)
def test_a_run_that_needs_a_removed_setting_names_the_commit_that_loads_it(key, value, commit, gpt):
    Path("text.txt").write_text(TEXT)
    trained_with(key, value, "runs/old")
    code, _, err = gpt("sample", "old", "--length", "3")
    assert code == (1 if commit else 0)
    assert f"the last commit that loads it is {commit}" in err or not commit
    assert "old" in gpt("runs")[1]


@pytest.mark.parametrize("split", ["tail", "documents"])
def test_a_run_whose_documents_were_divided_by_the_separator_is_sampled(split, tmp_path, gpt):
    """It is resumed only if the former value data.documents=separator had no effect."""
    Path("text.txt").write_text(TEXT)
    trained_with("data.documents", "separator", "old")
    for path in Path("old").glob("checkpoints/*/config.json"):
        tree = json.loads(path.read_text())
        tree["data"]["split"] = split
        path.write_text(json.dumps(tree))
        rehash(path.parent)
    assert gpt("sample", "old", "--length", "3")[0] == 0
    code, _, err = gpt("train", "--resume", "old", "--set", "train.steps=3")
    assert code == (0 if split == "tail" else 2)
    assert ("commit 8331f5f is the last that can resume it" in err) == (split == "documents")
