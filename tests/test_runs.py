"""A run on disk: what is written, what is read, what is refused."""

import errno
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpt.config.schema import Config
from gpt.errors import CheckpointError, GPTError, Unreadable, UsageError
from gpt.files import from_here
from gpt.model.shapes import parameter_shapes
from gpt.runs.find import find_run, list_runs
from gpt.runs.folder import check_free, make_numbered
from gpt.runs.format import FILES, FORMAT, CheckpointData, TrainingState
from gpt.runs.lock import is_running, locked
from gpt.runs.read import read_checkpoint, read_to_resume
from gpt.runs.recovery import recover, summary_to_resume
from gpt.runs.write import write_checkpoint
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Vocabulary
from gpt.training.start import train
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


def write(*steps: int, best: int | None = None, keep: int = 2, run: Path = RUN) -> None:
    run.mkdir(parents=True, exist_ok=True)
    for step in steps:
        best_so_far = None if best is None or best > step else best
        write_checkpoint(run, data_of(step, val_loss=2.5, best_step=best_so_far), STATE, keep=keep)


def place(step: int) -> Path:
    return RUN / "checkpoints" / f"step-{step}"


def kept() -> set[int]:
    return {int(path.name.removeprefix("step-")) for path in RUN.glob("checkpoints/step-*")}


# --- what is written is what is read ---


def test_a_checkpoint_is_read_as_it_was_written() -> None:
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


def test_the_files_are_those_of_other_programs() -> None:
    """safetensors and JSON: nothing in a checkpoint needs this program to be read."""
    write(7, best=7)
    assert {path.name for path in place(7).iterdir()} == {*FILES, "manifest.json"}
    weights = load_file(place(7) / "model.safetensors")
    assert (weights["head.weight"] == data_of(7).weights["head.weight"]).all()
    assert json.loads((place(7) / "config.json").read_text())["model"]["T"] == 13
    assert json.loads((RUN / "checkpoints/index.json").read_text()) == {"last": 7, "best": 7}


def test_best_is_last_where_nothing_was_evaluated_in_training() -> None:
    """`gpt sample` once took the untrained step 0 after an early Ctrl-C."""
    write(0, 3)
    assert json.loads((RUN / "checkpoints/index.json").read_text()) == {"last": 3, "best": None}
    assert read_checkpoint(RUN, "best").step == read_checkpoint(RUN, "last").step == 3


@pytest.mark.parametrize(
    ("keep", "expected"),
    [(1, {2, 11}), (2, {2, 7, 11}), (3, {2, 5, 7, 11}), (97, {2, 3, 5, 7, 11})],
)
def test_the_last_ones_and_the_best_are_kept(keep: int, expected: set[int]) -> None:
    write(2, 3, 5, 7, 11, best=2, keep=keep)
    assert kept() == expected
    assert read_checkpoint(RUN).step == 2


def test_the_best_before_is_kept_until_the_next_checkpoint() -> None:
    """Should the new best be damaged, the run rolls back, and `best` with it."""
    write(2, 3, 5, best=2)
    write(7, best=7)
    assert kept() == {2, 5, 7}
    (place(7) / "model.safetensors").write_bytes(b"")
    assert recover(RUN)[0].step == 5
    assert read_checkpoint(RUN, "best").step == 2


def test_a_copied_checkpoint_is_read_without_its_run() -> None:
    write(7)
    shutil.copytree(place(7), "elsewhere/step-7")
    shutil.rmtree(RUN)
    run = find_run("elsewhere/step-7")
    assert read_checkpoint(run, "best").step == read_checkpoint(run, 7).step == 7
    with pytest.raises(CheckpointError, match="expected step 5, got 7"):
        read_checkpoint(run, 5)


def test_a_run_is_copied_by_any_program() -> None:
    """scp -r and zip made folders of the links `best` and `last`."""
    write(3, 7, best=3)
    shutil.make_archive("copy", "zip", root_dir=RUN)
    shutil.unpack_archive("copy.zip", "copy")
    assert read_checkpoint(Path("copy"), "best").step == 3
    assert recover(Path("copy"))[0].step == 7


# --- what is not ---


@pytest.mark.parametrize("victim", [*FILES, "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
def test_a_damaged_file_is_refused_and_named(victim: str, damage: str) -> None:
    write(7)
    path = place(7) / victim
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        head = bytes(b ^ 0xFF for b in content[:40])
        path.write_bytes(
            {"cut": content[: len(content) // 8], "flip": head + content[40:], "empty": b""}[damage]
        )
    with pytest.raises(CheckpointError, match=rf"r/checkpoints/step-7: damaged .*{victim}"):
        read_to_resume(RUN, 7)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"step": NaN, "val_loss": 1, "best_step": 7, "numbers": {}}', "Out of range float"),
        ('{"step": 7, "val_loss": 1e999, "best_step": 7, "numbers": {}}', "Out of range float"),
        (
            '{"step": 7, "val_loss": 1, "best_step": 7, "numbers": {"x": [-Infinity]}}',
            "Out of range float",
        ),
        ('{"step": 7, "val_loss": 1, "best_step": -1, "numbers": {}}', "best_step"),
        ('{"step": 7, "val_loss": "1", "best_step": 7, "numbers": {}}', "val_loss"),
        ('{"step": 7, "val_loss": 1, "best_step": 7}', "numbers"),
        ('{"step": 9, "val_loss": 1, "best_step": 7, "numbers": {}}', "expected step 7, got 9"),
        ("[" * 10**5, "training.json"),
        ("9" * 10**5, "training.json"),
        ("\xff", "training.json"),
    ],
)
def test_numbers_that_no_run_has_are_refused(content: str, reason: str) -> None:
    write(7)
    (place(7) / "training.json").write_text(content, "latin-1")
    rehash(place(7))
    with pytest.raises(CheckpointError, match=rf"damaged .*{reason}"):
        read_checkpoint(RUN, "last")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("wrong", ["nan", "inf", "type", "shape", "name", "size"])
def test_tensors_of_another_model_are_refused(name: str, wrong: str) -> None:
    write(7)
    tensors = load_file(place(7) / name)
    first = next(iter(tensors))
    if wrong in ("nan", "inf"):
        tensors[first].flat[0] = float(wrong)
    elif wrong == "type":
        tensors[first] = tensors[first].astype(np.float64)
    elif wrong == "size":
        tensors[first] = np.zeros(5 * 2**22, np.float32)
    elif name == "optimizer.safetensors":
        pytest.skip("the optimizer knows the names and shapes of its tensors")
    elif wrong == "shape":
        tensors[first] = tensors[first][:-1].copy()
    else:
        tensors["other"] = tensors.pop(first)
    save_file(tensors, place(7) / name)
    rehash(place(7))
    with pytest.raises(CheckpointError, match="step-7: damaged"):
        read_to_resume(RUN, 7)


def test_a_checkpoint_of_a_later_format_is_refused() -> None:
    write(7)
    path = place(7) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": FORMAT + 1, "new": 1}))
    with pytest.raises(CheckpointError, match=f"expected format {FORMAT}, got {FORMAT + 1}"):
        read_checkpoint(RUN)


@pytest.mark.parametrize("content", [None, "", "{}", '{"last": -1, "best": null}', "[" * 10**5])
def test_a_lost_index_names_the_steps_and_is_repaired_by_a_resume(content: str | None) -> None:
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


# --- resuming ---


def test_a_training_state_of_something_else_is_refused(corpus: Corpus) -> None:
    train(small(train__stop_at_val_loss=99.0), corpus, RUN)
    training, optimizer = place(4) / "training.json", place(4) / "optimizer.safetensors"
    good, tensors = training.read_text(), load_file(optimizer)
    numbers = json.loads(good)["numbers"]
    for wrong in (
        {"progress": {"loss": "low"}},
        {"progress": 3},
        {"scaler": {"scale": [1]}},
        {"text_sha256": None},
    ):
        training.write_text(json.dumps(json.loads(good) | {"numbers": numbers | wrong}))
        rehash(place(4))
        with pytest.raises((CheckpointError, UsageError), match=r"not of this model|not the text"):
            train(small(), corpus, RUN, mode="resume")
    training.write_text(good)
    name = next(iter(tensors))
    for other in (
        {k: v for k, v in tensors.items() if k != name},
        tensors | {"7.mean.0": tensors[name]},
        tensors | {"mean": tensors[name]},
        tensors | {name: tensors[name][..., :-1].copy()},
    ):
        save_file(other, optimizer)
        rehash(place(4))
        with pytest.raises(CheckpointError, match="training state is not of this model"):
            train(small(), corpus, RUN, mode="resume")


def test_a_checkpoint_whose_writing_fails_leaves_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


# --- the list of runs ---

Gpt = Any  # Callable[..., tuple[int, str, str]]


@pytest.fixture
def three_runs(text_file: Path, gpt: Gpt) -> None:
    """Two of the same text, which are finished, and `third`, which is not."""
    steps = ("--set", "train.steps=3", "--set", "model.C=8", "--set", "model.T=7")
    for _ in range(2):
        assert gpt("train", text_file, "--set", "device=cpu", *steps)[0] == 0
    write(0, 3, best=3, run=Path("runs/third"))


def test_runs_are_named_after_their_text_and_listed(three_runs: None, gpt: Gpt) -> None:
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
    assert lines[0].split() == [
        "RUN",
        "TEXT",
        "STEPS",
        "VAL",
        "LOSS",
        "BITS/BYTE",
        "PARAMETERS",
        "SIZE",
        "AGE",
        "STATE",
    ]
    assert [line.split()[0] for line in lines[1:]] == ["third", "pangram-2", "pangram"]
    bits = f"{outcome.val_loss / math.log(2):.3f}"
    assert lines[3].split()[1:5] == ["pangram.txt", "3/3", f"{outcome.val_loss:.4f}", bits]
    assert max(map(len, lines)) <= 86  # a terminal with fewer columns shows fewer


def test_a_run_that_cannot_be_read_is_listed_all_the_same(gpt: Gpt) -> None:
    write(3, run=Path("runs/broken"))
    Path("runs/broken/checkpoints/step-3/config.json").write_text("{}")
    Path("runs/new").mkdir()
    Path("runs/new/config.yaml").touch()
    Path("runs/no run").mkdir()
    states = {run.name: run.state for run in list_runs()}
    assert states == {"broken": "damaged", "new": "empty"}
    assert gpt("runs")[0] == 0


def test_a_file_that_goes_while_runs_are_listed_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_without_runs_the_list_says_how_to_get_one(gpt: Gpt) -> None:
    assert gpt("runs") == (0, "no runs under runs/; start one with: gpt train\n", "")


def test_a_deleted_run_is_gone_but_for_what_is_not_its_own(three_runs: None, gpt: Gpt) -> None:
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


def test_a_checkpoint_is_named_by_its_step(three_runs: None, gpt: Gpt) -> None:
    for which, step in (("best", 3), ("0", 0), ("step-3", 3)):
        code, out, err = gpt("sample", "third", "--checkpoint", which, "--length", 2, "--json")
        assert (code, json.loads(out)["step"]) == (0, step), err
    code, _, err = gpt("sample", "third", "--checkpoint", "5")
    assert (code, "step-5: no such checkpoint; kept steps: 0, 3" in err) == (1, True)
    code, _, err = gpt("sample", "third", "--checkpoint", "newest")
    assert (code, "--checkpoint newest: expected best, last or a step" in err) == (2, True)


def test_a_copied_checkpoint_can_be_sampled_and_attended_to(gpt: Gpt) -> None:
    write(7)
    shutil.copytree(place(7), "mine")
    assert gpt("sample", "mine", "--length", 3)[0] == 0
    assert gpt("attend", "mine", "--text", "abc", "--out", "a.png")[0] == 0
    assert gpt("explain", "follow", "--run", "mine")[0] == 0


# --- what cannot be read is not damaged; what was never saved is not to be resumed ---


@contextmanager
def failing_disk(name: str, number: int) -> Iterator[None]:
    """Opening a file of that name fails with this error, as of a disk or for want of permission."""
    opened = Path.open

    def fails(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == name:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", fails)
        yield


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "manifest.json", "training.json"]
)
def test_a_checkpoint_that_cannot_be_read_is_left_as_it_is(name: str, number: int) -> None:
    """It was renamed as damaged, the run trained again, and a second time it was deleted."""
    write(1, 2, best=2)
    before = sorted(path.relative_to(RUN) for path in RUN.rglob("*"))
    with failing_disk(name, number):
        message = rf"step-2/{name}: cannot be read \({os.strerror(number)}\); nothing was changed"
        with pytest.raises(Unreadable, match=message):
            recover(RUN)
    assert sorted(path.relative_to(RUN) for path in RUN.rglob("*")) == before
    assert recover(RUN)[0].step == 2


def test_an_index_that_cannot_be_read_is_not_called_damaged() -> None:
    write(1)
    with failing_disk("index.json", errno.EIO), pytest.raises(Unreadable, match=r"index\.json"):
        read_checkpoint(RUN)
    assert read_checkpoint(RUN).step == 1


def test_runs_that_lead_nowhere_are_told_in_one_message() -> None:
    """A link to a disk that is not mounted: a run's folder was looked for without end."""
    Path("runs").symlink_to("nowhere/at/all")
    with pytest.raises(GPTError, match="runs: expected a folder that you may write to"):
        make_numbered(Path("runs/a"))
    with pytest.raises(Unreadable, match="runs: cannot be read"):
        find_run(None)
    with pytest.raises(Unreadable, match="runs: cannot be read"):
        list_runs()


def test_a_run_whose_first_checkpoint_was_not_completed_is_not_to_be_resumed() -> None:
    """The advice was --resume, which failed: the half-written folder was taken for a checkpoint."""
    half = RUN / "checkpoints/.step-0.tmp"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    (RUN / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(UsageError, match=r"r has no checkpoint yet.* --overwrite --run-dir r"):
        find_run("r")
    with pytest.raises(UsageError, match=r"r exists; replace it by --overwrite, or choose another"):
        check_free(RUN, overwrite=False)
    with locked(RUN), pytest.raises(UsageError, match="r is being written by another process"):
        check_free(RUN, overwrite=True)
    check_free(RUN, overwrite=True)
    assert [run.state for run in list_runs()] == []
    RUN.rename("moved")
    Path("runs").mkdir()
    Path("moved").rename("runs/r")
    assert [run.state for run in list_runs()] == ["empty"]


def test_a_process_that_was_killed_and_not_reaped_writes_no_run() -> None:
    """In a container whose first process reaps none, its run could never be overwritten."""
    program = "import sys, time; from pathlib import Path; from gpt.runs.lock import locked\n"
    program += "with locked(Path('r')): print('locked', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"locked\n"
        assert is_running(RUN)
        writer.kill()
        wait_until(lambda: not is_running(RUN))


def test_a_run_killed_between_two_renames_of_its_only_checkpoint_is_resumed() -> None:
    """It had no checkpoint yet, said the message, and was to be overwritten."""
    write(2)
    place(2).rename(RUN / "checkpoints/.step-2.replaced")
    assert find_run("r") == RUN
    assert summary_to_resume(RUN).config == small()
    assert recover(RUN)[0].step == 2


def test_a_run_that_is_being_written_is_not_to_be_overwritten() -> None:
    """Before its first checkpoint, the advice was --overwrite."""
    RUN.mkdir()
    (RUN / "config.yaml").write_text("seed: 1\n")
    with locked(RUN), pytest.raises(UsageError, match="r is being written by another process"):
        find_run("r")


def test_one_run_that_cannot_be_read_hides_no_other() -> None:
    Path("runs/loop").mkdir(parents=True)
    Path("runs/loop/checkpoints").symlink_to("checkpoints")
    Path("runs/loop/config.yaml").touch()
    write(1, run=Path("runs/good"))
    assert find_run(None) == Path("runs/good")
    assert {run.name for run in list_runs()} == {"loop", "good"}
    with pytest.raises(UsageError, match="expected the folder of a run"):
        find_run("x" * 300)


def test_a_path_is_named_also_from_a_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: an error about a file ended in another one if the working folder had been removed."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert from_here(gone / "r") == Path("r")
    gone.rmdir()
    assert from_here(gone / "r") == gone / "r"
