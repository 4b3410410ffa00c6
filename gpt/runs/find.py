"""Find and list the runs and sweeps under `runs/`.

Imports no torch, so that a wrong name is reported at once.
"""

import difflib
import json
import os
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpt.errors import CheckpointError, Unreadable, UsageError, listed, shown
from gpt.files import read_bounded
from gpt.model.shapes import parameter_count
from gpt.runs.format import INDEX, has_checkpoint, is_checkpoint, unreadable
from gpt.runs.lock import in_use, is_running, undo_killed_overwrite
from gpt.runs.read import read_summary

RUNS = Path("runs")
SWEEP = "sweep.json"  # specification of a sweep, in the folder of its runs
MAX_SWEEP_BYTES = 2**26  # largest size of sweep.json


def run_folders() -> list[Path]:
    """Return the paths of all entries of `runs/` and of the sweeps there; not all are runs."""
    if not os.path.lexists(RUNS):
        return []
    try:
        entries = sorted(RUNS.iterdir())
    except OSError as error:
        raise unreadable(RUNS, error) from error
    for sweep in filter(is_sweep, entries[:]):
        with suppress(OSError):
            entries += sorted(sweep.iterdir())
    return entries


def is_run(folder: Path) -> bool:
    """Return whether `folder` is the folder of a run, which may have no checkpoint yet."""
    return os.path.isfile(folder / "config.yaml") or has_checkpoint(folder)  # noqa: PTH113 (raises no error)


def is_sweep(folder: Path) -> bool:
    """Return whether `folder` contains the runs of a sweep."""
    return os.path.isfile(folder / SWEEP)  # noqa: PTH113 (raises no error)


def find_run(name: str | None) -> Path:
    """Return the folder of a run by its path or its name in `runs/`; for None, of the newest run.

    Raises:
        UsageError: there is no such run, it has no checkpoint yet, or it is a sweep.
    """
    if name is None:
        indices = [run / "checkpoints" / INDEX for run in run_folders()]
        indices = [index for index in indices if os.path.isfile(index)]  # noqa: PTH113 (raises no error)
        if not indices:
            raise UsageError("no run under runs/ has a checkpoint; start one with: gpt train")
        return max(indices, key=lambda index: index.stat().st_mtime_ns).parent.parent
    for run in (Path(name), RUNS / name) if _may_exist(name) else ():
        undo_killed_overwrite(run)
        if has_checkpoint(run) or is_checkpoint(run):
            return run
        if is_sweep(run):
            raise UsageError(f"{run} is a sweep; expected one of its runs, which gpt runs lists")
        if is_run(run) and is_running(run):
            raise in_use(run)
        if is_run(run):
            raise UsageError(
                f"{run} has no checkpoint yet: its first one was not completed; start it again "
                f"with --overwrite --run-dir {shlex.quote(str(run))}"
            )
    raise _no_such_run(name, "a run with a checkpoint")


def _may_exist(name: str) -> bool:
    """Return whether a file can have this name, which must have no NUL and no lone surrogate."""
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


def _no_such_run(name: str, expected: str) -> UsageError:
    near: list[str] = []
    with suppress(Unreadable):
        names = [run.name for run in run_folders() if is_run(run) or is_sweep(run)]
        near = difflib.get_close_matches(name, names, n=1)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    return UsageError(
        f"{shown(name)}: expected the folder of {expected}, or its name in runs/{suggestion}"
    )


def find_sweep(name: str | None) -> Path | None:
    """Return the folder of the sweep `name`, or None if there is no such sweep.

    If `name` is None, return the sweep that contains the newest run, or None if none does.
    """
    folders = [find_run(None).parent] if name is None else [Path(name), RUNS / name]
    return next(filter(is_sweep, folders), None)


def find_to_delete(name: str) -> Path:
    """Return the folder of a run or sweep, damaged or not, by its path or name in `runs/`."""
    for folder in (Path(name), RUNS / name):
        if is_sweep(folder) or is_run(folder):
            check_ours(folder)
            return folder
    raise _no_such_run(name, "a run")


def is_ours(folder: Path) -> bool:
    """Return whether `folder` is a real folder (not a link) with a run that gpt wrote."""
    is_written = (folder / "provenance.jsonl").is_file() or has_checkpoint(folder)
    return is_written and not folder.is_symlink()


def _has_sweep(folder: Path) -> bool:
    """Return whether the sweep.json in `folder` lists runs, as gpt writes it."""
    with suppress(OSError, ValueError, Unreadable):
        tree = json.loads(read_bounded(folder / SWEEP, MAX_SWEEP_BYTES))
        runs = tree.get("runs") if isinstance(tree, dict) else None
        return isinstance(runs, list) and all(isinstance(each, dict) for each in runs)
    return False


def check_ours(folder: Path) -> None:
    """Raise UsageError unless gpt wrote the sweep or the run in `folder`."""
    if folder.is_symlink():
        raise UsageError(f"{folder}: expected a run, got a link; name {folder.resolve()} itself")
    if not (_has_sweep(folder) or is_ours(folder)):
        raise UsageError(
            f"{folder} is not the folder of a run: it has neither provenance.jsonl, nor a "
            f"checkpoint, nor the sweep.json of gpt, so it is left alone; delete it yourself, or "
            f"name another folder"
        )


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run on disk. Fields from checkpoints that cannot be read are None."""

    name: str  # under runs/; SWEEP/RUN for a run in a sweep
    state: str  # running, stopped, finished, empty (no checkpoint yet), damaged or unreadable
    text: str | None = None
    step: int | None = None
    steps: int | None = None
    val_loss: float | None = None  # the lowest so far, in nats per `unit`
    bits_per_byte: float | None = None  # `val_loss` in bits per byte of UTF-8
    unit: str | None = None  # what an id stands for: "character" or "byte"
    parameters: int | None = None
    bytes: int = 0
    age_s: float = 0.0  # seconds since its last checkpoint


def list_runs() -> list[RunSummary]:
    """Summarise all runs in `runs/`, newest first. Unreadable runs have only a name and a state."""
    runs = []
    for run in run_folders():
        try:
            if is_run(run):
                runs.append(_summarise(run))
        except (OSError, Unreadable):
            runs.append(RunSummary(run.relative_to(RUNS).as_posix(), "unreadable"))
    return sorted(runs, key=lambda run: run.age_s)


def _summarise(run: Path) -> RunSummary:
    size = 0
    for folder, _, names in os.walk(run):
        for name in names:
            with suppress(OSError):  # a running process may have removed it meanwhile
                size += Path(folder, name).lstat().st_size
    index = run / "checkpoints" / INDEX
    age_s = time.time() - (index if index.exists() else run).stat().st_mtime
    state = "running" if is_running(run) else ""
    summary = RunSummary(run.relative_to(RUNS).as_posix(), state, bytes=size, age_s=age_s)
    try:
        last, best = read_summary(run, "last"), read_summary(run, "best")
    except CheckpointError:
        return replace(summary, state=state or ("damaged" if has_checkpoint(run) else "empty"))
    source = last.config.data.source
    return replace(
        summary,
        state=state or ("finished" if last.finished else "stopped"),
        text=source if isinstance(source, str) else listed(source, 1),
        step=last.step,
        steps=last.config.train.steps,
        val_loss=best.val_loss,
        bits_per_byte=best.bits_per_byte,
        unit=last.vocabulary.unit,
        parameters=parameter_count(last.config.model, len(last.vocabulary)),
    )
