"""What there is under `runs/`, also in sweeps: each run in a line, read without its weights."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpt.errors import GPTError, Unreadable, UsageError, shown
from gpt.model.shapes import parameter_count
from gpt.runs.checkpoint import INDEX, read_summary
from gpt.runs.folder import RUNS, has_checkpoint, is_run, is_running, run_folders
from gpt.text.documents import joined_name


@dataclass(frozen=True)
class RunSummary:
    """A run as it is on disk. Where its last checkpoint cannot be read, its numbers are None."""

    name: str  # under runs/; SWEEP/RUN of one in a sweep
    state: str  # running, stopped, finished, empty (no checkpoint yet), damaged or unreadable
    text: str | None = None
    step: int | None = None
    steps: int | None = None
    val_loss: float | None = None  # the lowest so far, nats per `unit`
    bits_per_byte: float | None = (
        None  # that loss in bits per byte of UTF-8, to compare any two runs by
    )
    unit: str | None = None  # character, or byte: what an id of its vocabulary stands for
    parameters: int | None = None
    bytes: int = 0
    age_s: float = 0.0  # since its last checkpoint


def list_runs() -> list[RunSummary]:
    """The runs under `runs/`, the newest first; of a folder that cannot be read, only its name."""
    listed = []
    for run in run_folders():
        try:
            if is_run(run):
                listed.append(_summarise(run))
        except (OSError, Unreadable):
            listed.append(RunSummary(_name(run), "unreadable"))
    return sorted(listed, key=lambda run: run.age_s)


def find_run_of_text(names: Sequence[str]) -> Path:
    """Return the newest run under `runs/` that was trained on the text of these names.

    Raises:
        UsageError: there is none.
    """
    wanted = [_absolute(name) for name in names]
    found: dict[Path, float] = {}
    for run in run_folders():
        with suppress(OSError, GPTError):  # not a run, or damaged
            source = read_summary(run, "last").config.data.source
            if [
                _absolute(name) for name in ([source] if isinstance(source, str) else source)
            ] == wanted:
                found[run] = (run / "checkpoints" / INDEX).stat().st_mtime
    if not found:
        raise UsageError(
            f"no run under {RUNS}/ was trained on {shown(joined_name(names))}; train one without "
            f"--resume, or name the run: --resume RUN (gpt runs lists them)"
        )
    return max(found, key=lambda run: found[run])


def _absolute(name: str) -> str:
    return str(Path(name).resolve()) if Path(name).exists() else name


def _summarise(run: Path) -> RunSummary:
    index = run / "checkpoints" / INDEX
    written = (index if index.exists() else run).stat().st_mtime
    size = _size(run)
    running = is_running(run)
    try:
        last, best = read_summary(run, "last"), read_summary(run, "best")
    except GPTError as error:
        state = "damaged" if has_checkpoint(run) else "empty"
        state = "unreadable" if isinstance(error, Unreadable) else state
        state = "running" if running else state
        return RunSummary(_name(run), state, bytes=size, age_s=time.time() - written)
    source = last.config.data.source
    return RunSummary(
        name=_name(run),
        state="running" if running else "finished" if last.finished else "stopped",
        text=source if isinstance(source, str) else joined_name(source),
        step=last.step,
        steps=last.config.train.steps,
        val_loss=best.val_loss,
        bits_per_byte=best.bits_per_byte,
        unit=last.vocabulary.unit,
        parameters=parameter_count(last.config.model, len(last.vocabulary)),
        bytes=size,
        age_s=time.time() - written,
    )


def _name(run: Path) -> str:
    return run.relative_to(RUNS).as_posix()


def _size(run: Path) -> int:
    """Bytes of its files, but for those that a process that writes the run removes meanwhile."""
    size = 0
    for folder, _, names in os.walk(run):
        for name in names:
            with suppress(OSError):
                size += Path(folder, name).lstat().st_size
    return size
