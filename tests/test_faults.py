"""What goes wrong around a run - kills, disks, memory, NaN, strangers' files."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.damage import damaged_files
from faults.kills import killed_at_operations, killed_at_random, killed_in_overwrite
from faults.operations import die_at
from faults.readers import beside_a_writer
from faults.work import Work, tiny

import gpt
from gpt.config.yaml import to_yaml
from gpt.errors import CheckpointError, Interrupted, TrainingError, Unreadable, UsageError
from gpt.files import write_atomically
from gpt.model.transformer import GPT
from gpt.runs.folder import make_numbered
from gpt.runs.format import step_folder
from gpt.runs.lock import LOCK
from gpt.runs.read import read_checkpoint, read_index, read_to_resume
from gpt.training.schedule import Schedule
from gpt.training.start import train_run
from gpt.training.step import TrainStep
from tests.conftest import (
    COMMAND,
    HANGS_S,
    before_forward,
    full_disk,
    load,
    metrics_of,
    records,
    rehash,
    saved_weights,
    small,
    wait_until,
)
from tests.test_training import RISING

PART = {"train__stop_at_val_loss": 99.0}  # ends at the first evaluation, step 4


def last_folder(run: Path) -> Path:
    return step_folder(run / "checkpoints", read_index(run / "checkpoints").last)


def test_a_run_killed_again_and_again_ends_as_if_never_killed(corpus, tmp_path):
    """A half-written folder that a kill left once kept the run from ever saving that step.

    Bug: killed as `last` and then `best` were replaced, a run lost its best for good.
    """
    work = Work(tmp_path, corpus)
    tallies = [
        killed_at_random(work, kills=1, seed=1),
        *killed_at_operations(work, kills=17, second_kills=1, seed=1),
        killed_in_overwrite(work, kills=1),
    ]
    assert [tally.failures for tally in tallies] == [[], [], [], []]
    assert [tally.tries for tally in tallies][:2] == [1, 17]


@pytest.mark.parametrize("operation", [3, 5, 8, 11])
def test_an_overwrite_that_is_killed_before_its_first_checkpoint_leaves_the_old_run(
    corpus, tmp_path, operation
):
    """Bug: it was deleted before. The kill comes amid the moves, after them, or in training."""
    work, run = Work(tmp_path, corpus), tmp_path / "run"
    assert work.train(tiny(4, every=4), run) == 0
    old, names = saved_weights(run), {path.name for path in run.glob("[!.]*")}
    kill = partial(die_at, operation)
    code = work.train(tiny(4, every=4, seed=7), run, kill, again="overwrite")
    assert code == -signal.SIGKILL
    assert gpt.load(run).config.seed == tiny(4).seed
    assert saved_weights(run) == old
    assert {path.name for path in run.glob("[!.]*")} == names


def test_an_ensemble_killed_again_and_again_ends_as_if_never_killed(corpus, tmp_path):
    """Its members train in threads, and may be a step apart when they are killed."""
    work = Work(tmp_path, corpus)
    tallies = killed_at_operations(work, kills=2, second_kills=1, seed=2, ensemble=3)
    assert [tally.failures for tally in tallies] == [[], []]
    assert tallies[0].tries == 2


def test_a_reader_beside_a_run_that_saves_reads_what_was_saved(corpus, tmp_path):
    """An index that was replaced between two openings of it was once called damaged."""
    tally = beside_a_writer(Work(tmp_path, corpus), reads=67)
    assert (tally.failures, tally.tries) == ([], 67)


def test_a_run_that_was_lengthened_stays_so_though_it_is_killed_before_its_next_checkpoint(corpus):
    """It went back to the settings of its last checkpoint, and ended as the shorter run."""
    train_run(small(), corpus, Path("r"))
    before = saved_weights(Path("r"))

    def kill(model: GPT, ids: torch.Tensor) -> None:
        raise KeyboardInterrupt

    with before_forward(kill), pytest.raises(KeyboardInterrupt):
        train_run(small(train__steps=17), corpus, Path("r"), mode="resume")
    assert read_checkpoint(Path("r"), "last").config.train.steps == 17
    assert read_checkpoint(Path("r"), "best").config.train.steps == 17
    assert saved_weights(Path("r")) == before


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "training.json", "manifest.json"]
)
def test_a_run_goes_back_from_a_damaged_checkpoint_to_the_one_before(corpus, caplog, name):
    train_run(small(), corpus, Path("uninterrupted"))
    train_run(small(train__steps=9), corpus, Path("r"))
    before = {path.name for path in Path("r/checkpoints").glob("step-*")}
    assert "step-9" in before
    path = Path("r/checkpoints/step-9", name)
    path.write_bytes(path.read_bytes()[:-3])
    # 9 steps have another schedule than 11, so compare with a run that never got to step 9
    shutil.copytree("r", "other")
    shutil.rmtree("other/checkpoints/step-9")
    train_run(small(), corpus, Path("r"), mode="resume")
    assert "step-9: damaged" in caplog.text
    assert Path("r/checkpoints/damaged-step-9").is_dir()
    train_run(small(), corpus, Path("other"), mode="resume")
    assert saved_weights(Path("r")) == saved_weights(Path("other"))
    assert metrics_of(Path("r")) == metrics_of(Path("other"))
    assert metrics_of(Path("r"))[-1]["step"] == 11


def test_a_run_that_had_enough_is_finished(corpus):
    """Each resume once trained on, to the next evaluation."""
    train_run(small(**PART), corpus, Path("r"))
    for config in (small(**PART), small(train__patience=1, **PART)):
        with pytest.raises(UsageError, match=r"r is finished: val loss .*, at step 4 .*=null"):
            train_run(config, corpus, Path("r"), mode="resume")
    assert train_run(small(), corpus, Path("r"), mode="resume").step == 11


def test_a_run_stopped_before_its_first_evaluation_is_not_finished(corpus):
    """Nothing is known yet but the loss of guessing, though that is below the target."""
    with pytest.raises(Interrupted):
        train_run(
            small(**PART), corpus, Path("r"), should_stop=lambda: Path("r/checkpoints").exists()
        )
    assert read_checkpoint(Path("r"), "last").step == 1
    assert train_run(small(**PART), corpus, Path("r"), mode="resume").step == 4


def test_a_stop_in_an_evaluation_saves_at_once_and_the_curves_have_no_gap(corpus, monkeypatch):
    """It once waited for the evaluation's end: minutes, on a large text."""
    monkeypatch.setattr("gpt.evaluation.windows.EVAL_CHARACTERS", 26)  # many batches
    config = small(train__eval_every=11)
    train_run(config, corpus, Path("uninterrupted"))
    windows: list[int] = []

    def count(model: GPT, ids: torch.Tensor) -> None:
        if not model.training and len(ids) > 1:
            windows.append(len(ids))

    with before_forward(count), pytest.raises(Interrupted, match="stopped at step 11, saved"):
        train_run(config, corpus, Path("r"), should_stop=lambda: bool(windows))
    assert metrics_of(Path("r"))[-1]["step"] == 10
    train_run(config, corpus, Path("r"), mode="resume")
    assert metrics_of(Path("r")) == metrics_of(Path("uninterrupted"))
    assert saved_weights(Path("r")) == saved_weights(Path("uninterrupted"))


def test_a_stop_just_after_an_evaluation_saves_too(corpus):
    """It once said `saved`, of a step that was neither due nor the best."""
    evaluated: list[int] = []

    def note(event: dict[str, Any]) -> None:
        if event["kind"] == "evaluation":
            evaluated.append(event["step"])

    with pytest.raises(Interrupted, match="stopped at step 10, saved"):
        train_run(
            small(train__checkpoint_every=100, **RISING),
            corpus,
            Path("r"),
            should_stop=lambda: 10 in evaluated,
            on_event=note,
        )
    assert read_checkpoint(Path("r"), "last").step == 10
    assert read_checkpoint(Path("r"), "best").step < 10


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def training(start: Start, text_file: Path) -> Start:
    """Start a long run, after a word such as nohup; given back once it has made its first steps."""
    config = small(data__source=str(text_file), train__steps=10**6, train__checkpoint_every=10**6)
    Path("c.yaml").write_text(to_yaml(config))

    def started(*before: str, **options: Any) -> subprocess.Popen[str]:
        process = start(
            *before, *COMMAND, "train", "--config", "c.yaml", "--run-dir", "r", **options
        )
        wait_until(lambda: records("r") >= 3, process)
        return process

    return started


def test_a_terminal_that_is_closed_loses_nothing(training):
    """Writing to the closed terminal once ended the run before it was saved."""
    leader, follower = os.openpty()
    process = training(stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    os.close(leader)
    process.send_signal(signal.SIGHUP)
    assert process.wait(HANGS_S) == 129
    assert read_checkpoint(Path("r"), "last").step >= 2


def test_nohup_is_obeyed(training):
    process = training("nohup", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process.send_signal(signal.SIGHUP)
    count = records("r") + 9
    wait_until(lambda: records("r") >= count, process)


@pytest.mark.precision
def test_two_processes_and_two_environments_give_the_same_bits(text_file):
    Path("c.yaml").write_text(to_yaml(small(data__source=str(text_file))))
    for run, seed in (("a", "0"), ("b", "77")):
        environment = os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "2", "LANG": "C"}
        command = [*COMMAND, "train", "--config", "c.yaml", "--run-dir", run]
        subprocess.run(command, env=environment, check=True, capture_output=True)
    assert saved_weights(Path("a")) == saved_weights(Path("b"))
    assert metrics_of(Path("a")) == metrics_of(Path("b"))


def test_a_run_is_written_by_one_process_at_a_time(corpus, start):
    train_run(small(**PART), corpus, Path("r"))
    script = (
        "from pathlib import Path; from gpt.runs.lock import locked\n"
        "with locked(Path('r')): print('held', flush=True); input()"
    )
    holder = start(sys.executable, "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    expected = "r is being written by another process"
    for mode in ("resume", "overwrite"):
        with pytest.raises(UsageError, match=expected):
            train_run(small(), corpus, Path("r"), mode)
    holder.kill()
    holder.communicate()
    assert Path("r", LOCK).exists(), "left by the dead, and no hindrance"
    assert train_run(small(), corpus, Path("r"), mode="resume").step == 11


def test_a_folder_that_is_moved_is_not_made_again_without_its_lock(corpus):
    """The run once wrote its last checkpoints to a new folder, and ended without the best one.

    Bug: the message advised to make room on the disk.
    """
    train_run(small(), corpus, Path("uninterrupted"))

    def move(model: GPT, ids: torch.Tensor) -> None:
        if Path("r/checkpoints/step-4").exists():
            Path("r").rename("moved")

    with (
        before_forward(move),
        pytest.raises(TrainingError, match=r"step 8 in r .* moved or deleted"),
    ):
        train_run(small(), corpus, Path("r"))
    assert not Path("r").exists()
    train_run(small(), corpus, Path("moved"), mode="resume")
    assert saved_weights(Path("moved")) == saved_weights(Path("uninterrupted"))
    assert metrics_of(Path("moved")) == metrics_of(Path("uninterrupted"))


def test_a_run_that_is_to_be_numbered_finds_a_folder_though_another_was_faster(corpus):
    """Of two runs started at once under one name, one ended as its folder was taken meanwhile."""
    runs = [train_run(small(**PART), corpus, Path("runs/r"), mode="numbered").run for _ in range(3)]
    assert runs == ["runs/r", "runs/r-2", "runs/r-3"]
    with ThreadPoolExecutor(7) as pool:
        at_once = [*pool.map(make_numbered, [Path("runs/at-once")] * 13)]
    assert len({folder for folder in at_once if folder.is_dir()}) == 13


def test_a_first_checkpoint_that_cannot_be_saved_is_not_to_be_resumed(gpt, config_file):
    """Bug: the advice was --resume, which then failed.

    Bug: with --overwrite, the message did not say that the old run was restored.
    """
    command = ("train", "--config", config_file, "--run-dir", "r")
    for options, kept in (((), "it has no checkpoint yet"), (("--overwrite",), "the old run is")):
        with full_disk(20_000):
            code, _, err = gpt(*command, *options)
        assert code == 1
        assert f"cannot save step 0 in r (File too large); {kept}" in err
        assert " ".join(err.split()).endswith("start it again with --overwrite --run-dir r")
        assert gpt(*command, "--overwrite")[0] == 0
    assert read_checkpoint(Path("r"), "last").step == 11


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_loses_nothing_and_the_run_goes_on_once_there_is_room(corpus, tmp_path):
    train_run(small(), corpus, Path("uninterrupted"))
    with small_disk(tmp_path / "disk", "4m"):
        run, filler = tmp_path / "disk/r", tmp_path / "disk/filler"
        train_run(small(**PART), corpus, run)
        filler.write_bytes(bytes(shutil.disk_usage(run).free - 100_000))
        with pytest.raises(TrainingError, match=r"cannot save step 4 .*No space left on device"):
            train_run(small(), corpus, run, mode="resume")
        assert read_checkpoint(run, "last").step == 4
        filler.unlink()
        train_run(small(), corpus, run, mode="resume")
        assert saved_weights(run) == saved_weights(Path("uninterrupted"))
        assert metrics_of(run) == metrics_of(Path("uninterrupted"))


Poison = Callable[[Callable[[int], bool]], None]


@pytest.fixture
def poison() -> Iterator[Poison]:
    """Make the gradients of a step NaN where `bad` says so; the loss stays finite."""
    hooks = []

    def poison(bad: Callable[[int], bool]) -> None:
        steps = count()

        def hook(module: torch.nn.Module, _inputs: object, logits: torch.Tensor) -> None:
            if isinstance(module, GPT) and module.training and bad(next(steps)):
                logits.register_hook(lambda gradient: gradient * float("nan"))

        hooks.append(torch.nn.modules.module.register_module_forward_hook(hook))

    yield poison
    for hook in hooks:
        hook.remove()


def test_a_step_that_is_nan_is_skipped_and_reported(corpus, poison):
    poison(lambda step: step in (5, 6))
    train_run(small(), corpus, Path("r"))
    events = [(r["step"], r["event"]) for r in metrics_of(Path("r")) if "event" in r]
    assert [step for step, _ in events] == [6, 7]
    assert "step 6 skipped: the loss is 3." in events[0][1]
    assert [r["step"] for r in metrics_of(Path("r")) if "train_loss" in r] == [4, 8, 10, 11]
    assert all(tensor.isfinite().all() for tensor in load("r").parameters())


def test_after_three_in_a_row_the_run_goes_back_with_half_the_learning_rates(corpus, poison):
    poison(lambda step: step in (17, 18, 19))
    config = small(train__steps=31)
    outcome = train_run(config, corpus, Path("r"))
    assert outcome.reason == "all steps done"
    records = metrics_of(Path("r"))
    (back,) = (r for r in records if r.get("event", "").startswith("rolled back"))
    assert back["step"] == 16
    assert "from step 20" in back["event"]
    rates = {r["step"]: r["lr"] for r in records if "lr" in r}
    for step, rate in rates.items():
        scheduled = Schedule(config).lr(step - 1)
        assert rate == scheduled if step <= 16 else rate == scheduled / 2
    assert [*rates] == [4, 8, 10, 12, 16, 20, 24, 28, 30, 31]
    _, state = read_to_resume(Path("r"), 31)
    assert state.numbers["progress"]["scale"] == 0.5


def test_a_run_that_is_killed_after_a_rollback_keeps_its_learning_rates(corpus, poison):
    poison(lambda step: step in (5, 6, 7, 20, 21, 22))  # three steps of each run
    train_run(small(), corpus, Path("whole"))
    notices: list[str] = []

    def kill(event: dict[str, Any]) -> None:
        notices.append(event.get("text", ""))
        if event["kind"] == "step" and any("rolled back" in notice for notice in notices):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(small(), corpus, Path("r"), on_event=kill)
    train_run(small(), corpus, Path("r"), mode="resume")
    assert saved_weights("whole") == saved_weights("r")
    backs = [r for r in metrics_of(Path("r")) if r.get("event", "").startswith("rolled back")]
    assert len(backs) == 1


def test_a_run_goes_back_to_before_the_steps_that_were_not_taken(corpus, poison):
    """Saved in their midst, a checkpoint once led from one such step to the next."""
    poison(lambda step: step in (6, 7, 8))
    train_run(small(train__eval_every=100, train__checkpoint_every=4), corpus, Path("r"))
    backs = [r for r in metrics_of(Path("r")) if r.get("event", "").startswith("rolled back")]
    assert [(r["step"], "from step 9" in r["event"]) for r in backs] == [(4, True)]


def test_weights_that_are_no_numbers_are_never_saved(corpus, monkeypatch):
    """They once were, as the last good checkpoint, and the run was stuck."""
    monkeypatch.setattr("gpt.training.schedule.Schedule.lr", lambda schedule, step: 1e39)
    config = small(train__optimizer="adamw", train__checkpoint_every=1)
    with pytest.raises(TrainingError, match="rolled back 3 times"):
        train_run(config, corpus, Path("r"))
    assert read_checkpoint(Path("r"), "last").step == 0


def test_damaged_files_are_read_right_or_refused(corpus, tmp_path):
    train_run(small(**PART), corpus, Path("r"))
    tally = damaged_files(tmp_path, Path("r"), count=250, seed=3)
    assert tally.failures == []
    assert tally.outcomes.total() == 250


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "manifest.json"])
def test_a_link_in_a_checkpoint_is_not_followed(corpus, name):
    train_run(small(**PART), corpus, Path("r"))
    path = last_folder(Path("r")) / name
    path.rename("elsewhere")
    path.symlink_to(Path("elsewhere").resolve())
    with pytest.raises(CheckpointError, match=f"{name}: expected a file, got a link"):
        read_checkpoint(Path("r"), "last")


def test_a_link_out_of_the_run_is_not_followed(corpus):
    """Bug: a resume made the target of metrics.jsonl and provenance.jsonl, outside of the run."""
    train_run(small(**PART), corpus, Path("r"))
    nowhere, secret, kept = Path("nowhere").resolve(), Path("secret").resolve(), Path("kept")
    secret.write_text("mine")
    names = ("metrics.jsonl", "provenance.jsonl", "config.yaml", "events.out.tfevents.1", ".lock")
    for name, target in product(names, (nowhere, secret)):
        link = Path("r", name)
        if link.exists():
            link.rename(kept)
        link.symlink_to(target)
        with pytest.raises(UsageError, match="got a link or pipe"):
            train_run(small(), corpus, Path("r"), mode="resume")
        assert (nowhere.exists(), secret.read_text()) == (False, "mine")
        link.unlink()
        if kept.exists():
            kept.rename(link)


def test_a_file_is_replaced_without_following_a_link_at_its_temporary_name(elsewhere):
    """Bug: a link of that name, which another can guess, led the write out of the folder."""
    target = elsewhere / "target"
    Path(elsewhere, f".file.{os.getpid()}.tmp").symlink_to(target)
    write_atomically(elsewhere / "file", [b"content"])
    assert ((elsewhere / "file").read_bytes(), target.exists()) == (b"content", False)


@pytest.mark.parametrize(
    ("key", "value"),
    [("n_layer", 10**9), ("ngram", 10**9), ("T", 10**9), ("C", 10**9), ("n_head", 10**9)],
)
def test_a_config_that_claims_a_giant_costs_nothing(corpus, key, value):
    """n_layer: 1000000000 once made reading list the parameters of all those layers."""
    train_run(small(**PART), corpus, Path("r"))
    last = last_folder(Path("r"))
    config = json.loads((last / "config.json").read_text())
    config["model"][key] = value
    (last / "config.json").write_text(json.dumps(config))
    rehash(last)
    with pytest.raises((CheckpointError, Unreadable)):
        read_checkpoint(Path("r"), "last")


def test_checkpoints_come_by_the_clock(corpus, monkeypatch):
    """A step that takes 31 s: every second one is saved, and the last."""
    config = small(train__checkpoint_every="1 min", train__eval_every=100)
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    call = TrainStep.__call__
    seen: list[int] = []

    def slow(self: TrainStep, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(read_checkpoint(Path("r"), "last").step)
        now[0] += 31
        return call(self, step)

    monkeypatch.setattr(TrainStep, "__call__", slow)
    train_run(config, corpus, Path("r"))
    assert seen == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10]
    assert read_checkpoint(Path("r"), "last").step == 11
