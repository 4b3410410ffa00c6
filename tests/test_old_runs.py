"""Runs of earlier versions: what still loads, and which settings are refused."""

import json
import zipfile
from pathlib import Path

import pytest

import gpt as package
from gpt.cli.runs import list_runs
from gpt.config.load import load_config
from gpt.config.removed import REMOVED_SETTINGS
from gpt.errors import ConfigError
from gpt.evaluation.comparison import read_curve
from tests.conftest import rehash, small

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n" * 60
NETWORK = 3.1778294893681855  # loss of the network at the end of commit edbdc22's run of 30 steps


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that commit edbdc22 trained with n-gram counts; its mixture was best at step 10."""
    monkeypatch.chdir(tmp_path)
    Path("old.txt").write_text(TEXT)
    run = tmp_path / "runs" / "counted"
    with zipfile.ZipFile(Path(__file__).parent / "old_runs" / "counts.zip") as file:
        file.extractall(run)
    return run


def test_the_network_of_a_run_with_counts_loads_with_one_notice(counted, gpt):
    code, out, err = gpt("sample", "counted", "--length", "7")
    assert (code, len(out.strip("\n")) > 0) == (0, True)
    assert err.count("was trained with n-gram counts") == 1
    model = package.load("counted")
    assert (model.step, model.config.model.T) == (30, 8), "the last: the best had the best mixture"
    val = TEXT[int(0.9 * len(TEXT)) :]
    assert model.loss(val) == pytest.approx(NETWORK, abs=1e-5)
    assert model.checkpoint.val_loss is None


def test_losses_of_a_mixture_are_not_shown_as_those_of_the_network(counted):
    """Otherwise 0.11 would be compared with 3.18."""
    [run] = list_runs()
    assert (run.val_loss, run.bits_per_byte) == (None, None)
    curve = read_curve(counted, 32)
    assert curve.losses == pytest.approx([3.4012, 3.3087, 3.2174, 3.1778], abs=1e-4)
    assert curve.final_loss == NETWORK


def test_a_run_with_counts_is_resumed_as_a_network(counted, gpt):
    code, _, err = gpt("train", "--resume", "counted", "--set", "train.steps=40")
    assert (code, err.count("was trained with n-gram counts")) == (0, 1)
    assert "its results differ from those of the old version" in err
    records = [json.loads(line) for line in (counted / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == 40
    assert records[-1]["val_loss"] < NETWORK + 0.1
    assert "val_loss_network" not in records[-1]
    index = json.loads((counted / "checkpoints" / "index.json").read_text())
    assert index["best"] == 40
    assert package.load("counted").checkpoint.val_loss == records[-1]["val_loss"]
    config = (counted / "config.yaml").read_text()
    assert "counts" not in config
    assert load_config(counted / "config.yaml").model.T == 8, "it repeats the run"


def test_a_run_with_counts_can_be_fine_tuned(counted, gpt):
    code, _, err = gpt("train", "old.txt", "--init-from", "counted", "--set", "train.steps=3")
    assert (code, err.count("was trained with n-gram counts")) == (0, 1)


def trained_with(stored: dict[str, object], run: str) -> None:
    """Train a run, and store the values in its checkpoints as an old version did."""
    Path("text.txt").write_text(TEXT)
    package.train(small(train__steps=2), text="text.txt", run_dir=run)
    for path in Path(run).glob("checkpoints/*/config.json"):
        tree = json.loads(path.read_text())
        for key, value in stored.items():
            section, _, name = key.partition(".")
            tree[section][name] = value
        path.write_text(json.dumps(tree))
        rehash(path.parent)


def test_a_distilled_run_is_sampled_evaluated_and_fine_tuned_but_not_resumed(tmp_path, gpt):
    trained_with({"train.distill": "runs/teacher"}, "student")
    trained_with({"train.distill": None}, "plain")
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


@pytest.mark.parametrize(("key", "instead"), REMOVED_SETTINGS.items())
def test_removed_settings_are_refused_with_what_to_do(key, instead, tmp_path, gpt):
    with pytest.raises(ConfigError, match=f"{key} does not exist any more: {instead}"):
        load_config(None, [f"{key}=5"])
    path = tmp_path / "old.yaml"
    section, _, name = key.partition(".")
    path.write_text(f"{section}: {{{name}: 5}}\n")
    code, _, err = gpt("train", "--config", path)
    assert (code, instead in err) == (2, True)
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value", "commit"),
    [("data.max_vocabulary", None, None), ("data.max_vocabulary", 7, "93286f7")],
)
def test_a_run_that_needs_a_removed_setting_names_the_commit_that_loads_it(key, value, commit, gpt):
    trained_with({key: value}, "runs/old")
    code, _, err = gpt("sample", "old", "--length", "3")
    assert code == (1 if commit else 0)
    assert (f"the last commit that loads it is {commit}" in err) == bool(commit)
    assert "old" in gpt("runs")[1]


@pytest.mark.parametrize(
    ("stored", "commit"),
    [
        ({"data.documents": "separator", "data.split": "tail"}, None),
        ({"data.documents": "separator", "data.split": "documents"}, "8331f5f"),
        ({"data.newlines": "lf"}, None),
        ({"data.newlines": "keep"}, "7050005"),
        ({"data.separator": "\n\n"}, None),
        ({"data.separator": "---"}, "7050005"),
        ({"data.column": "text", "data.separator": "\n\n"}, "7050005"),
        ({"data.lowercase": False, "data.normalize": "none"}, None),
        ({"data.lowercase": True}, "7050005"),
        ({"data.normalize": "NFC"}, "7050005"),
    ],
)
def test_a_run_with_a_removed_value_is_sampled_and_resumed_if_it_had_no_effect(stored, commit, gpt):
    trained_with(stored, "old")
    assert gpt("sample", "old", "--length", "3")[0] == 0
    code, _, err = gpt("train", "--resume", "old", "--set", "train.steps=3")
    assert code == (2 if commit else 0)
    assert (f"commit {commit} is the last that can resume it" in err) == bool(commit)
