"""Find, list, make and delete the folders of runs and sweeps.

Imports no torch, so that a wrong name is reported at once.
"""

import difflib
import json
import os
import unicodedata
from contextlib import suppress
from pathlib import Path

from gpt.config.schema import Config
from gpt.errors import GPTError, Unreadable, UsageError, arguments, command, resume_command, shown
from gpt.files import read_bounded
from gpt.runs.format import INDEX, has_checkpoint, is_checkpoint, unreadable
from gpt.runs.lock import LOCK, empty, in_use, is_running, locked, undo_killed_overwrite
from gpt.text.cache import STORED_INPUT

RUNS = Path("runs")
SWEEP = "sweep.json"  # file with the specification of a sweep, in the sweep's folder
MAX_SWEEP_BYTES = 2**26  # largest size of sweep.json, in bytes


def run_folders() -> list[Path]:
    """Return the paths of all entries of `runs/` and of each sweep there; some are not runs."""
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
    return os.path.isfile(folder / "config.yaml") or has_checkpoint(folder)  # noqa: PTH113 (Path.is_file can raise)


def is_sweep(folder: Path) -> bool:
    """Return whether `folder` contains the runs of a sweep."""
    return os.path.isfile(folder / SWEEP)  # noqa: PTH113 (Path.is_file can raise)


def find_run(name: str | None) -> Path:
    """Return the folder of the run `name` (a path, or a name in `runs/`); None is the newest.

    If an overwrite of that run was killed, complete or undo it first. Raise UsageError if there is
    no such run, it has no checkpoint yet, or it is a sweep.
    """
    if name is None:
        indices = [run / "checkpoints" / INDEX for run in run_folders()]
        indices = [index for index in indices if os.path.isfile(index)]  # noqa: PTH113 (Path.is_file can raise)
        if not indices:
            raise UsageError("no run under runs/ has a checkpoint; start one with: gpt train")
        return max(indices, key=lambda index: index.stat().st_mtime_ns).parent.parent
    for run in (Path(name), RUNS / name):
        undo_killed_overwrite(run)
        if has_checkpoint(run) or is_checkpoint(run):
            return run
        if is_sweep(run):
            raise UsageError(f"{run} is a sweep; expected one of its runs; gpt runs lists them")
        if is_run(run) and is_running(run):
            raise in_use(run)
        if is_run(run):
            raise UsageError(
                f"{run} has no complete checkpoint; start the run again with "
                f"{arguments(overwrite=True, run_dir=str(run))}"
            )
    raise _no_such_run(name, "a run with a checkpoint")


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

    If `name` is None, return the sweep of the newest run, or None if that run is in no sweep.
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
    """Return whether `folder` has a sweep.json that lists runs, as gpt writes it."""
    with suppress(OSError, ValueError, RecursionError):
        tree = json.loads(read_bounded(folder / SWEEP, MAX_SWEEP_BYTES))
        runs = tree.get("runs") if isinstance(tree, dict) else None
        return isinstance(runs, list) and all(isinstance(each, dict) for each in runs)
    return False


def check_ours(folder: Path) -> None:
    """Raise UsageError unless gpt wrote the sweep or the run in `folder`."""
    if folder.is_symlink():
        raise UsageError(f"{folder}: expected a run, got a link; give {folder.resolve()} instead")
    if not (_has_sweep(folder) or is_ours(folder)):
        raise UsageError(
            f"{folder} is not the folder of a run: it has neither provenance.jsonl, nor a "
            f"checkpoint, nor the sweep.json of gpt, so it is left alone; delete it yourself, or "
            f"name another folder"
        )


def make_numbered(run: Path) -> Path:
    """Make `run`, or if it exists, the first free folder of RUN-2, RUN-3, ...; return its path."""
    check_can_be_made(run.parent)
    run.parent.mkdir(parents=True, exist_ok=True)
    made, number = run, 1
    while True:
        with suppress(FileExistsError):
            made.mkdir()
            return made
        number += 1
        made = run.with_name(f"{run.name}-{number}")


def check_can_be_made(path: Path) -> None:
    """Raise GPTError unless `path` is a writable folder, or can be made as one."""
    above = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise GPTError(
            f"{above}: expected a folder that you may write to; change its permissions, remove the "
            f"file or link of that name, or choose another {arguments('run_dir')}"
        )


def check_free(run: Path, *, overwrite: bool) -> None:
    """Raise UsageError or GPTError if a new run cannot be written in the folder `run`.

    The folder must be missing or empty. With `overwrite`, it may also contain a run, unless a
    process is writing that run.
    """
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in run.name):
        raise UsageError(f"{shown(str(run))}: expected a folder's name without control characters")
    undo_killed_overwrite(run)
    other, overwriting = arguments("run_dir"), arguments(overwrite=True)
    if run.exists() and not run.is_dir():
        raise UsageError(f"{other} {run}: expected a folder's name, got a file or device")
    # hidden entries are the lock, and temporary files of killed processes
    if run.exists() and not all(entry.name.startswith(".") for entry in run.iterdir()):
        check_ours(run)
        if is_sweep(run):
            raise UsageError(
                f"{run} is a sweep, which {overwriting} does not replace; delete it by "
                f"{command('runs', '--delete', str(run))}, or choose another {other}"
            )
        if not overwrite:
            resume = f"resume it by {resume_command(run)}, " if has_checkpoint(run) else ""
            advice = f"{resume}replace it by {overwriting}, or choose another {other}"
            raise UsageError(f"{run} exists; {advice}")
        if is_running(run):
            raise in_use(run)
    check_can_be_made(run)


def check_keeps(folder: Path, config: Config) -> None:
    """Raise UsageError if overwriting `folder` would delete a run or text that `config` reads."""
    needed = list[tuple[str, str, Path]]()  # setting, its value, the path of a run or text
    data = config.data
    for key, texts in (("data.source", data.source), ("data.val_source", data.val_source)):
        names = [texts] if isinstance(texts, str) else texts or []
        needed += [(key, name, Path(name)) for name in names]
    for key, run in (
        ("train.init_from", config.train.init_from),
        ("data.vocabulary", config.data.vocabulary),
    ):
        if run not in (None, "characters", "bytes"):
            with suppress(UsageError):  # no such run; reported later
                needed.append((key, run, find_run(run)))
    for key, name, place in needed:
        if folder.resolve() in (path := place.resolve(), *path.parents):
            raise UsageError(
                f"{folder}: {arguments(overwrite=True)} would delete {name}, which {key} needs; "
                f"move {name}, or choose another {arguments('run_dir')}"
            )


def delete_run(folder: Path) -> None:
    """Delete the files of a run or of all runs of a sweep, and the folders that are then empty.

    Raise UsageError if another process is writing one of these runs.
    """
    if not is_sweep(folder):
        _delete(folder)
        return
    with locked(folder):
        runs = [*filter(is_ours, sorted(folder.iterdir()))]
        if used := next(filter(is_running, runs), None):
            raise in_use(used)
        for run in runs:
            _delete(run)
        (folder / STORED_INPUT).unlink(missing_ok=True)
        (folder / SWEEP).unlink()
    _remove_if_empty(folder)


def _delete(run: Path) -> None:
    with locked(run):
        empty(run)
    _remove_if_empty(run)


def _remove_if_empty(folder: Path) -> None:
    (folder / LOCK).unlink(missing_ok=True)
    with suppress(OSError):  # the folder may contain other files
        folder.rmdir()
