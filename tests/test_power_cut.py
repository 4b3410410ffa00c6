"""A power cut at any point of a save leaves the state before it or the state after it."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from faults.work import PROCESSES

from gpt.errors import CheckpointError
from gpt.runs.format import CheckpointData
from gpt.runs.read import read_checkpoint
from gpt.runs.recovery import recover
from gpt.runs.write import write_checkpoint
from tests import power_cut
from tests.conftest import HANGS_S
from tests.test_runs import RUN, STATE, data_of, write

STEPS = {"first": (None, 4), "next": (2, 4), "the same step": (4, 4)}  # before, saved


def save_and_record(step: int, record: Path) -> None:
    """Save a checkpoint in a process of its own, and write the moments of the run's folder."""
    recorder = power_cut.Recorder(RUN)
    recorder.note()
    write_checkpoint(RUN, data_of(step, val_loss=1.5), STATE)
    recorder.note()
    record.write_bytes(pickle.dumps(recorder.moments))


@pytest.mark.parametrize("case", STEPS)
def test_a_power_cut_leaves_the_old_state_or_the_new_one(case):
    """The other tests do without fsync; here every write that was not synced is dropped."""
    before, step = STEPS[case]
    RUN.mkdir()
    if before is not None:
        write(before)
    child = PROCESSES.Process(target=save_and_record, args=(step, Path("record").absolute()))
    child.start()
    child.join(HANGS_S)
    assert child.exitcode == 0
    moments = pickle.loads(Path("record").read_bytes())
    results = dict[str, set[tuple[int, float | None]]]()
    for number, (now, disk) in enumerate(unique(moments)):
        run = Path(f"cut-{number}")
        power_cut.write(disk, run)
        results.setdefault("end" if now else "before", set()).add(found(run, case))
    old = None if before is None else (before, 2.5)
    assert results == {"before": {old, (step, 1.5)}, "end": {(step, 1.5)}}


def unique(moments: list[power_cut.Moment]) -> list[tuple[bool, power_cut.Disk]]:
    """Return each different disk once, with whether the save had ended."""
    last, seen = len(moments) - 1, {}
    for now, disk in power_cut.states(moments):
        seen[now == last, frozenset(disk.items())] = disk
    return [(ended, disk) for (ended, _), disk in seen.items()]


def found(run: Path, case: str) -> tuple[int, float | None] | None:
    """Return the step and val loss of the checkpoint to resume.

    Readers find an intact one too, in the case "next" also before a resume has repaired the run.
    """
    if case == "next":
        check(read_checkpoint(run, "last"))
    try:
        data, state = recover(run)
    except CheckpointError as error:
        assert "no checkpoint" in str(error)
        return None
    assert state.numbers == STATE.numbers
    for known in (data, read_checkpoint(run, "last"), read_checkpoint(run, "best")):
        assert check(known) == check(data)
    return check(data)


def check(data: CheckpointData) -> tuple[int, float | None]:
    """Check the weights of a checkpoint, and return its step and val loss."""
    expected = data_of(data.step).weights
    assert all(np.array_equal(data.weights[name], array) for name, array in expected.items())
    return data.step, data.val_loss
