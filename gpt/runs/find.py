"""Find a run or a sweep by its name. Imports no torch, so that a wrong name is an error at once."""

import difflib
import errno
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpt.config.schema import Config
from gpt.errors import GPTError, Unreadable, UsageError, shown
from gpt.runs.format import INDEX, has_checkpoint, is_checkpoint
from gpt.runs.lock import is_running, undo_killed_overwrite, writer_of
from gpt.runs.read import read_summary
from gpt.text.documents import joined_name

RUNS = Path("runs")
SWEEP = "sweep.json"  # the plan of a sweep, in the folder of its runs


def run_folders() -> list[Path]:
    """Return the entries of `runs/` and of its sweeps; raise Unreadable if it cannot be listed."""
    try:
        entries = sorted(RUNS.iterdir())
        for sweep in filter(is_sweep, entries[:]):
            with suppress(OSError):
                entries += sorted(sweep.iterdir())
        return entries
    except OSError as error:
        if not os.path.lexists(RUNS):
            return []
        raise Unreadable(
            f"{RUNS}: cannot list the runs in it ({error.strerror}); expected a folder that you "
            f"may read"
        ) from error


def is_run(folder: Path) -> bool:
    """Return whether this is the folder of a run, in any state."""
    return (folder / "config.yaml").is_file() or has_checkpoint(folder)


def is_sweep(folder: Path) -> bool:
    """Return whether this is the folder of a sweep, which contains runs."""
    return os.path.isfile(folder / SWEEP)  # noqa: PTH113 (no errors)


def find_run(name: str | None) -> Path:
    """Return the folder of a run by its path or its name under `runs/`; default: the newest run.

    Raises:
        UsageError: there is no such run, or it has no checkpoint yet.
        Unreadable: `runs/` cannot be listed.
    """
    if name is None:
        indices = [run / "checkpoints" / INDEX for run in run_folders()]
        indices = [index for index in indices if os.path.isfile(index)]  # noqa: PTH113 (no errors)
        if not indices:
            raise UsageError("no run under runs/ has a checkpoint; start one with: gpt train")
        return max(indices, key=lambda index: index.stat().st_mtime_ns).parent.parent
    for run in (Path(name), RUNS / name):
        try:
            undo_killed_overwrite(run)
            if has_checkpoint(run) or is_checkpoint(run):
                return run
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                break
            raise
        _check_not_empty(run)
    raise _no_such_run(name, "a run with a checkpoint")


def _check_not_empty(folder: Path) -> None:
    """Raise UsageError if `folder` is a run without a checkpoint, or a sweep."""
    if is_run(folder) and is_running(folder):
        raise UsageError(
            f"{folder} has no checkpoint yet and is being written by another process "
            f"({writer_of(folder)}); wait for its first checkpoint"
        )
    if is_run(folder):
        raise UsageError(
            f"{folder} has no checkpoint yet: its first one was not completed; start it again "
            f"with --overwrite --run-dir {shlex.quote(str(folder))}"
        )
    if is_sweep(folder):
        names = sorted(entry.name for entry in folder.iterdir() if is_run(entry))
        example = f", such as {folder / names[0]}" if names else ", none of which has started"
        raise UsageError(f"{folder} is a sweep; expected one of its runs{example} (see gpt runs)")


def _no_such_run(name: str, expected: str) -> UsageError:
    """Return the error for an unknown name, with the most similar known one."""
    near: list[str] = []
    with suppress(Unreadable):
        names = [run.name for run in run_folders() if is_run(run) or is_sweep(run)]
        near = difflib.get_close_matches(name, names, n=1)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    return UsageError(
        f"{name}: expected the folder of {expected}, or its name in runs/{suggestion}"
    )


def find_run_of_text(names: Sequence[str]) -> Path:
    """Return the newest run under `runs/` that was trained on the text of these names."""
    wanted = [_absolute(name) for name in names]
    changed: dict[Path, float] = {}
    for run in run_folders():
        with suppress(OSError, GPTError):  # not a run, or damaged
            source = read_summary(run, "last").config.data.source
            sources = [source] if isinstance(source, str) else source
            if [_absolute(name) for name in sources] == wanted:
                changed[run] = (run / "checkpoints" / INDEX).stat().st_mtime
    if not changed:
        raise UsageError(
            f"no run under {RUNS}/ was trained on {shown(joined_name(names))}; train one without "
            f"--resume, or name the run: --resume RUN (gpt runs lists them)"
        )
    return max(changed, key=lambda run: changed[run])


def _absolute(name: str) -> str:
    return str(Path(name).resolve()) if Path(name).exists() else name


def find_teacher(name: str) -> Path:
    """Return the folder of the run in `train.distill`. For errors see `find_run`."""
    try:
        return find_run(name)
    except UsageError as error:
        raise UsageError(f"train.distill: {error}") from error


def find_sweep(name: str | None) -> Path | None:
    """Return the folder of a sweep by path or name, default that of the newest run, or None."""
    if name is None:
        run = find_run(None)
        return run.parent if is_sweep(run.parent) else None
    return next((folder for folder in (Path(name), RUNS / name) if is_sweep(folder)), None)


def find_to_delete(name: str) -> Path:
    """Return the folder of a run or sweep, in any state, by its path or name in `runs/`."""
    for folder in (Path(name), RUNS / name):
        if is_sweep(folder) or is_run(folder):
            return folder
    raise _no_such_run(name, "a run")


def source_runs(config: Config) -> dict[str, str]:
    """Return the runs that this config loads weights from, by setting."""
    runs = {"train.init_from": config.train.init_from, "train.distill": config.train.distill}
    return {key: run for key, run in runs.items() if run is not None}
