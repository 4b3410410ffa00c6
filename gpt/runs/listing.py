"""List the runs under `runs/`, also those in sweeps, without reading their weights."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpt.errors import CheckpointError, Unreadable, listed
from gpt.model.shapes import parameter_count
from gpt.runs.find import RUNS, is_run, run_folders
from gpt.runs.format import INDEX, has_checkpoint
from gpt.runs.lock import is_running
from gpt.runs.read import read_summary


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run on disk. Fields from its checkpoints are None if they cannot be read."""

    name: str  # under runs/; SWEEP/RUN for a run in a sweep
    state: str  # running, stopped, finished, empty (no checkpoint yet), damaged or unreadable
    text: str | None = None
    step: int | None = None
    steps: int | None = None
    val_loss: float | None = None  # the lowest so far, in nats per `unit`
    bits_per_byte: float | None = None  # `val_loss` in bits per byte of UTF-8
    unit: str | None = None  # what an id stands for: character or byte
    parameters: int | None = None
    bytes: int = 0
    age_s: float = 0.0  # seconds since its last checkpoint


def list_runs() -> list[RunSummary]:
    """Summarise each run under `runs/`, newest first. An unreadable run has only name and state."""
    listed = []
    for run in run_folders():
        try:
            if is_run(run):
                listed.append(_summarise(run))
        except (OSError, Unreadable):
            listed.append(RunSummary(run.relative_to(RUNS).as_posix(), "unreadable"))
    return sorted(listed, key=lambda run: run.age_s)


def _summarise(run: Path) -> RunSummary:
    size = 0
    for folder, _, names in os.walk(run):
        for name in names:
            with suppress(OSError):  # removed meanwhile by a running process
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
