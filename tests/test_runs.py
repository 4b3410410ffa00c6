"""A run on disk: what is written, what is read, what is refused."""

import errno
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpt import api
from gpt.cli.runs import list_runs
from gpt.config.schema import Config
from gpt.errors import CheckpointError, GPTError, Unreadable, UsageError
from gpt.model.shapes import parameter_shapes
from gpt.runs.folder import check_free, find_run, make_numbered
from gpt.runs.format import FILES, CheckpointData, TrainingState
from gpt.runs.lock import is_running, locked, undo_killed_overwrite
from gpt.runs.read import read_checkpoint
from gpt.runs.recovery import recover, summary_to_resume
from gpt.runs.write import write_checkpoint
from gpt.text.vocabulary import Vocabulary
from gpt.training.start import train_run
from tests.conftest import rehash, small, wait_until

VOCABULARY = Vocabulary.of("\n abcdefghij")
RUN = Path("r")
STATE = TrainingState({"0.mean.0": np.arange(3, dtype=np.float32)}, {"y": 2, "x": [0.1, None]})


def data_of(step: int, **known: Any) -> CheckpointData:
    config: Config = small()
    draws = np.random.default_rng(step)
    shapes = parameter_shapes(config.model, len(VOCABULARY))
    weights = {name: draws.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    return CheckpointData(step, config, VOCABULARY, weights, **known)


def write(*steps: int, best: int | None = None, run: Path = RUN) -> None:
    run.mkdir(parents=True, exist_ok=True)
    for step in steps:
        best_so_far = None if best is None or best > step else best
        write_checkpoint(run, data_of(step, val_loss=2.5, best_step=best_so_far), STATE)


def place(step: int) -> Path:
    return RUN / "checkpoints" / f"step-{step}"


def kept() -> set[int]:
    return {int(path.name.removeprefix("step-")) for path in RUN.glob("checkpoints/step-*")}


def test_a_checkpoint_is_read_as_it_was_written():
    write(7, best=7)
    for data in (read_checkpoint(RUN), read_checkpoint(RUN, 7), read_checkpoint(RUN, "step-7")):
        expected = data_of(7)
        assert (data.step, data.val_loss, data.best_step) == (7, 2.5, 7)
        assert (data.config, data.vocabulary) == (expected.config, VOCABULARY)
        assert data.weights.keys() == expected.weights.keys()
        assert all((data.weights[name] == array).all() for name, array in expected.weights.items())
    _, state = recover(RUN)
    assert state.numbers == STATE.numbers
    assert state.tensors["0.mean.0"].tolist() == [0, 1, 2]


def test_the_files_are_those_of_other_programs():
    """safetensors and JSON. Bug: scp -r and zip made folders of the links `best` and `last`."""
    write(7, best=7)
    assert not any(path.is_symlink() for path in RUN.rglob("*"))
    assert {path.name for path in place(7).iterdir()} == {*FILES, "manifest.json"}
    weights = load_file(place(7) / "model.safetensors")
    assert (weights["head.weight"] == data_of(7).weights["head.weight"]).all()
    assert json.loads((place(7) / "config.json").read_text())["model"]["T"] == 13
    assert json.loads((RUN / "checkpoints/index.json").read_text()) == {"last": 7, "best": 7}


def test_the_best_before_is_kept_until_the_next_checkpoint():
    """Should the new best be damaged, the run rolls back, and `best` with it."""
    write(2, 3, 5, best=2)
    write(7, best=7)
    assert kept() == {2, 5, 7}
    (place(7) / "model.safetensors").write_bytes(b"")
    assert recover(RUN)[0].step == 5
    assert read_checkpoint(RUN, "best").step == 2


@pytest.mark.parametrize("content", [None, "", "{}", '{"last": -1, "best": null}', "[" * 10**5])
def test_a_lost_index_names_the_steps_and_is_repaired_by_a_resume(content):
    write(3, 7, best=3)
    index = RUN / "checkpoints/index.json"
    before = index.read_bytes()
    index.unlink()
    if content is not None:
        index.write_text(content)
    with pytest.raises(CheckpointError, match=re.escape("[3, 7]")):
        read_checkpoint(RUN)
    assert read_checkpoint(RUN, 3).step == 3
    recover(RUN)
    assert index.read_bytes() == before


def test_a_training_state_of_something_else_is_refused(corpus):
    """Bug: the message showed the address of a page about another library."""
    train_run(small(train__stop_at_val_loss=99.0), corpus, RUN)
    training, optimizer = place(4) / "training.json", place(4) / "optimizer.safetensors"
    good, tensors = training.read_text(), load_file(optimizer)
    numbers = json.loads(good)["numbers"]
    for wrong, refused in (
        ({k: v for k, v in numbers.items() if k != "progress"}, r"this model \(.*progress.*;"),
        (numbers | {"progress": 3}, "does not fit this model"),
        (numbers | {"scaler": {"scale": [1]}}, "does not fit this model"),
        (numbers | {"text_sha256": None}, "not the text"),
    ):
        training.write_text(json.dumps(json.loads(good) | {"numbers": wrong}))
        rehash(place(4))
        with pytest.raises((CheckpointError, UsageError), match=refused):
            train_run(small(), corpus, RUN, mode="resume")
    training.write_text(good)
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name][..., :-1].copy()}, optimizer)
    rehash(place(4))
    with pytest.raises(CheckpointError, match="training state does not fit this model"):
        train_run(small(), corpus, RUN, mode="resume")


def test_a_checkpoint_whose_writing_fails_leaves_the_old_one(monkeypatch):
    write(3)

    def disk_is_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", disk_is_full)
        with pytest.raises(OSError, match="No space left"):
            write(7)
    assert kept() == {3}
    assert read_checkpoint(RUN, "last").step == 3
    assert {path.name for path in (RUN / "checkpoints").iterdir()} == {"index.json", "step-3"}


@pytest.fixture
def three_runs(text_file, gpt):
    """Two of the same text, which are finished, and `third`, which is not."""
    few = ("train.steps=3", "model.C=8", "model.T=7", "train.sample_length=0", "sample.length=3")
    settings = [part for each in (*few, "device=cpu") for part in ("--set", each)]
    for _ in range(2):
        assert gpt("train", text_file, *settings)[0] == 0
    write(0, 3, best=3, run=Path("runs/third"))


def test_runs_are_named_after_their_text_and_listed(three_runs, gpt):
    """All were called `run`, `run-2`, ... whatever they had read."""
    with locked(Path("runs/third")):
        code, out, _ = gpt("runs", "--json")
        runs = {run["name"]: run for run in json.loads(out)["runs"]}
    assert code == 0
    assert set(runs) == {"pangram", "pangram-2", "third"}
    outcome = read_checkpoint(Path("runs/pangram"))
    assert runs["pangram"] | {"age_s": 0} == {
        "name": "pangram",
        "state": "finished",
        "text": outcome.config.data.source,
        "step": 3,
        "steps": 3,
        "val_loss": outcome.val_loss,
        "bits_per_byte": pytest.approx(outcome.val_loss / math.log(2)),
        "unit": "character",
        "parameters": sum(array.size for array in outcome.weights.values()),
        "bytes": sum(p.stat().st_size for p in Path("runs/pangram").rglob("*") if p.is_file()),
        "age_s": 0,
    }
    assert (runs["third"]["state"], runs["third"]["step"]) == ("running", 3)
    third = next(run for run in list_runs() if run.name == "third")
    assert third.state == "stopped"
    lines = gpt("runs")[1].splitlines()
    header = "RUN TEXT STEPS VAL LOSS BITS/BYTE PARAMETERS SIZE AGE STATE"
    assert lines[0].split() == header.split()
    assert [line.split()[0] for line in lines[1:]] == ["third", "pangram-2", "pangram"]
    bits = f"{outcome.val_loss / math.log(2):.3f}"
    assert lines[3].split()[1:5] == ["pangram.txt", "3/3", f"{outcome.val_loss:.4f}", bits]
    assert max(map(len, lines)) <= 86  # a terminal with fewer columns shows fewer


def test_a_file_that_goes_while_runs_are_listed_does_not_count(monkeypatch):
    """A training run prunes its checkpoints; the list of all runs ended in an error."""
    write(3, run=Path("runs/training"))
    Path("runs/training/metrics.jsonl").write_text("{}")
    lstat = Path.lstat

    def gone_by_now(path: Path) -> os.stat_result:
        if path.name == "metrics.jsonl":
            path.unlink(missing_ok=True)
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", gone_by_now)
    assert [(run.name, run.step) for run in list_runs()] == [("training", 3)]


def test_a_deleted_run_is_gone_but_for_what_is_not_its_own(three_runs, gpt):
    Path("runs/pangram-2/notes.txt").write_text("mine")
    assert gpt("runs", "--yes", "--delete", "pangram")[:2] == (0, "deleted runs/pangram\n")
    assert gpt("runs", "--yes", "--delete", "runs/pangram-2")[0] == 0
    assert not Path("runs/pangram").exists()
    assert [path.name for path in Path("runs/pangram-2").iterdir()] == ["notes.txt"]
    assert [run.name for run in list_runs()] == ["third"]
    with locked(Path("runs/third")):
        code, _, err = gpt("runs", "--yes", "--delete", "third")
    assert (code, "is being written by another process" in err) == (2, True)
    assert read_checkpoint(Path("runs/third")).step == 3
    code, _, err = gpt("runs", "--yes", "--delete", "nowhere")
    assert (code, "nowhere: expected the folder of a run" in err) == (2, True)
    shutil.copytree("runs/third", "copy")
    both = ("--delete", "third", "--delete", "copy", "--json")
    assert json.loads(gpt("runs", "--yes", *both)[1]) == {"deleted": ["runs/third", "copy"]}
    assert not Path("runs/third").exists(), "bug: of two, only the last was deleted"


def test_a_checkpoint_is_named_by_its_step(three_runs, gpt):
    for which, step in (("best", 3), ("0", 0), ("step-3", 3)):
        code, out, err = gpt("sample", "third", "--checkpoint", which, "--length", 2, "--json")
        assert (code, json.loads(out)["step"]) == (0, step), err
    code, _, err = gpt("sample", "third", "--checkpoint", "5")
    assert (code, "step-5: no such checkpoint; choose one of the steps 0, 3" in err) == (1, True)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "manifest.json", "training.json"]
)
def test_a_checkpoint_that_cannot_be_read_is_left_as_it_is(name, number, monkeypatch):
    """It was renamed as damaged, the run trained again, and a second time it was deleted."""
    write(1, 2, best=2)
    before = sorted(path.relative_to(RUN) for path in RUN.rglob("*"))
    opened = Path.open

    def fails(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == name:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fails)
        message = rf"step-2/{name}: cannot be read \({os.strerror(number)}\); nothing was changed"
        with pytest.raises(Unreadable, match=message):
            recover(RUN)
    assert sorted(path.relative_to(RUN) for path in RUN.rglob("*")) == before
    assert recover(RUN)[0].step == 2


def test_runs_that_lead_nowhere_are_told_in_one_message():
    """A link to a disk that is not mounted: a run's folder was looked for without end."""
    Path("runs").symlink_to("nowhere/at/all")
    with pytest.raises(GPTError, match="runs: expected a folder that you may write to"):
        make_numbered(Path("runs/a"))
    with pytest.raises(Unreadable, match="runs: cannot be read"):
        find_run(None)
    with pytest.raises(Unreadable, match="runs: cannot be read"):
        list_runs()


def test_a_run_whose_first_checkpoint_was_not_completed_is_not_to_be_resumed():
    """The advice was --resume, which failed: the half-written folder was taken for a checkpoint.

    Bug: while the run was being written, the advice was --overwrite.
    """
    half = RUN / "checkpoints/.step-0.tmp"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    (RUN / "config.yaml").write_text("seed: 1\n")
    (RUN / "provenance.jsonl").touch()
    with pytest.raises(UsageError, match=r"r has no complete checkpoint.* overwrite=True, run_dir"):
        find_run("r")
    with pytest.raises(UsageError, match=r"r exists; replace it by overwrite=True, or choose"):
        check_free(RUN, overwrite=False)
    being_written = "r is being written by another process"
    with locked(RUN), pytest.raises(UsageError, match=being_written):
        check_free(RUN, overwrite=True)
    with locked(RUN), pytest.raises(UsageError, match=being_written):
        find_run("r")
    check_free(RUN, overwrite=True)
    assert [run.state for run in list_runs()] == []
    RUN.rename("moved")
    Path("runs").mkdir()
    Path("moved").rename("runs/r")
    assert [run.state for run in list_runs()] == ["empty"]


def test_a_process_that_was_killed_and_not_reaped_writes_no_run():
    """In a container whose first process reaps none, its run could never be overwritten."""
    program = "import sys, time; from pathlib import Path; from gpt.runs.lock import locked\n"
    program += "with locked(Path('r')): print('locked', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"locked\n"
        assert is_running(RUN)
        writer.kill()
        wait_until(lambda: not is_running(RUN))


def test_a_run_killed_between_two_renames_of_its_only_checkpoint_is_resumed():
    """It had no checkpoint yet, said the message, and was to be overwritten."""
    write(2)
    place(2).rename(RUN / "checkpoints/.step-2.replaced")
    assert find_run("r") == RUN
    assert summary_to_resume(RUN).config == small()
    assert recover(RUN)[0].step == 2


def test_a_sweep_json_or_a_text_of_the_user_is_not_deleted(gpt, config_file):
    """Bugs: any sweep.json made a folder a sweep; --overwrite deleted the text that it needed."""
    Path("mine").mkdir()
    seeds = ("--seeds", 2, "--run-dir", "mine")
    for content in ('{"mine": 1}', "[" * 100_000):
        Path("mine/sweep.json").write_text(content)
        for command in (("runs", "--delete", "mine", "--yes"), ("train", "--config", config_file)):
            assert gpt(*command, *(seeds if command[0] == "train" else ()))[0] == 2
        assert Path("mine/sweep.json").read_text() == content
    write(1, run=Path("r"))
    Path("r/text.txt").write_text("the only copy")
    command = ("train", "r/text.txt", "--config", config_file, "--run-dir", "r", "--overwrite")
    code, _, err = gpt(*command)
    assert (code, "would delete r/text.txt" in err) == (2, True)


def test_an_old_run_without_a_config_is_restored_after_a_killed_overwrite():
    """Bug: "Directory not empty", and its checkpoints were out of reach in `.replaced`."""
    write(1)
    (RUN / ".replaced").mkdir()
    (RUN / "checkpoints").rename(RUN / ".replaced/checkpoints")
    (RUN / "checkpoints/.step-0.tmp").mkdir(parents=True)
    undo_killed_overwrite(RUN)
    assert read_checkpoint(RUN).step == 1
    assert not (RUN / ".replaced").exists()


def test_only_what_gpt_wrote_is_deleted_or_replaced(gpt, config_file):
    """Bug: `gpt runs --delete LINK --yes` emptied the run that the link named.

    Bug: --overwrite took every folder with a config.yaml for a run.
    """
    for run in (Path("elsewhere/r"), Path("real/s")):
        write(1, run=run)
    Path("project").mkdir()
    Path("project/config.yaml").write_text("mine: 1")
    Path("real/link").symlink_to("../elsewhere/r")
    Path("runs").symlink_to("real")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    for name in ("link", "runs/link", "project"):
        assert gpt("runs", "--delete", name, "--yes")[0] == 2
    for name in ("runs/link", "project"):
        assert gpt("train", "--config", config_file, "--overwrite", "--run-dir", name)[0] == 2
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    assert gpt("runs", "--delete", "s", "--yes")[0] == 0, "runs/ itself may be a link"
    assert not Path("real/s").exists()


def test_a_resume_says_what_it_ignores_and_how_the_learning_rate_changes(gpt, config_file):
    """Bug: the rate of a finished run rose 34-fold, and an edited config.yaml was replaced.

    Bug: with fewer steps than done, the message was "step 11 of 5".
    """
    gpt("train", "--config", config_file, "--run-dir", "r")
    settings = Path("r/config.yaml")
    settings.write_text(settings.read_text().replace("batch_size: 6", "batch_size: 7"))
    resume = ("train", "--resume", "r", "--set")
    code, _, err = gpt(*resume, "train.steps=5")
    assert (code, "r has done 11 steps, more than train.steps 5" in err) == (2, True)
    code, _, err = gpt(*resume, "train.steps=29")
    assert (code, "config.yaml: train.batch_size (6 to 7); a resume" in err) == (0, True)
    assert "from step 11, the learning rate rises from" in err
    code, _, err = gpt(*resume, "train.steps=29", "--set", "train.patience=2")
    assert (code, "edited" in err, "rises" in err) == (2, False, False)


def test_a_deleted_working_folder_is_named(gpt, tmp_path, monkeypatch):
    """Bug: the process ended in `Intel oneMKL FATAL ERROR` when it imported torch."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    expected = "the working folder was deleted; change to another folder"
    assert gpt("runs")[::2] == (1, f"gpt: {expected}\n")
    with pytest.raises(GPTError, match=expected):
        api.train("quickstart")
