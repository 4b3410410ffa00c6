"""Runs that another version of gpt wrote are refused by name, and left as they are."""

import json
import shutil
from pathlib import Path

import pytest

import gpt as package
from gpt.errors import Unreadable
from gpt.runs.format import FORMAT
from tests.conftest import rehash, small

RESUME = ("train", "--resume", "r", "--set", "train.steps=9")


@pytest.fixture
def newest(text_file: Path) -> Path:
    """The folder of the newest of the three checkpoints of the run `r`, which has 6 steps."""
    package.train(small(train__steps=6, train__checkpoint_every=2), text=text_file, run_dir="r")
    return Path("r/checkpoints/step-6")


def contents(run: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(run).rglob("*") if path.is_file()}


def change(path: Path, key: str, value: object) -> None:
    """Set a key of a checkpoint's JSON file, such as `model.T`, as another version could."""
    tree = section = json.loads(path.read_text())
    *parents, name = key.split(".")
    for parent in parents:
        section = section[parent]
    section[name] = value
    path.write_text(json.dumps(tree))
    if path.name != "manifest.json":
        rehash(path.parent)


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        (
            "manifest.json",
            "format",
            FORMAT + 1,
            f"expected a checkpoint of format {FORMAT}, got format {FORMAT + 1}; use the version",
        ),
        ("config.json", "model.memory", 7, "no setting model.memory with the value 7; use the"),
        ("config.json", "train.optimizer", "lion", "no setting train.optimizer with the value "),
    ],
)
def test_a_run_of_another_version_is_refused_in_one_line_and_left_as_it_is(
    file, key, value, message, newest, gpt
):
    """Bug: its checkpoint was renamed to damaged-step-6, and training went on from step 4."""
    change(newest / file, key, value)
    before = contents("r")
    for command in (
        RESUME,
        ("sample", "r", "--checkpoint", "last"),
        ("eval", "r", "--checkpoint", "last"),
        ("train", "pangram.txt", "--init-from", "r", "--run-dir", "new"),
    ):
        code, out, err = gpt(*command)
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert message in err
        assert "damaged" not in err
    with pytest.raises(Unreadable, match=f"step-6: .*{message}"):
        package.resume("r", settings={"train.steps": 9})
    assert contents("r") == before
    assert not Path("new").exists()


def test_a_sweep_with_an_unknown_setting_is_refused_and_left_as_it_is(config_file, gpt):
    assert gpt("train", "--config", config_file, "--seeds", 2)[0] == 0
    path = Path("runs/small-sweep/sweep.json")
    tree = json.loads(path.read_text())
    tree["runs"][1]["asked"]["model"]["memory"] = 7
    path.write_text(json.dumps(tree))
    before = contents("runs")
    code, _, err = gpt("train", "--resume", path.parent)
    assert (code, "runs.1.asked.model.memory: unknown key" in err) == (2, True)
    assert contents("runs") == before


def test_a_folder_whose_name_is_no_step_is_ignored(newest, gpt):
    """Bug: a copy named step-00060 counted as the checkpoint of step 60, which does not exist."""
    copies = [newest.with_name(name) for name in ("step-00060", "step-6-copy", "step-٦")]
    for copy in copies:
        shutil.copytree(newest, copy)
    code, _, err = gpt(*RESUME)
    assert (code, "damaged" in err) == (0, False)
    assert all(copy.is_dir() for copy in copies)
    assert package.load("r", "last").step == 9
