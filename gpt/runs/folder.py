"""Name, make, find, lock and check the folder of a run.

Loads no torch, so that a wrong name is an error at once.
"""

import difflib
import errno
import json
import os
import platform
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

from gpt.config.schema import Config
from gpt.errors import GPTError, TrainingError, Unreadable, UsageError
from gpt.files import write_atomically
from gpt.runs.checkpoint import INDEX, is_checkpoint, steps_in
from gpt.text.standard_input import STORED_INPUT

RUNS = Path("runs")
LOCK = ".lock"
WRITER = ".writer.json"  # the process that has the lock
REPLACED, MOVING = ".replaced", ".moving"  # folders in a run; see `set_aside`
SWEEP = "sweep.json"  # what a sweep is to train, in the folder of its runs
WRITTEN = (  # by a run, into its folder
    *("checkpoints", "metrics.jsonl", "provenance.jsonl", STORED_INPUT),
    *("events.out.tfevents.*", "projector", "projector_config.pbtxt"),
    "config.yaml",  # removed last: by it a folder is known to be a run's
)


def make_numbered(run: Path) -> Path:
    """Make `run`, or the first of RUN-2, RUN-3, ... that does not exist; return its path.

    Raises GPTError if the folder that it is to be in cannot be made.
    """
    make_folder(run.parent)
    made, number = run, 1
    while True:
        try:
            made.mkdir()
        except FileExistsError:
            number += 1
            made = run.with_name(f"{run.name}-{number}")
        else:
            return made


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are not there.

    Raises GPTError if it can be neither made nor written to.
    """
    check_can_be_made(path)
    path.mkdir(parents=True, exist_ok=True)


def check_can_be_made(path: Path, advice: str = "choose another --run-dir") -> None:
    """Raises GPTError if a folder of this name can be neither made nor written to.

    As where something else has its name, such as a link to a disk that is not mounted.
    """
    above = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not above.is_dir():
        raise GPTError(
            f"{above}: expected a folder, got a file or a link to nowhere; mount the disk that it "
            f"leads to, remove it, or {advice}"
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise GPTError(
            f"{above}: expected a folder that you may write to, got one that you may not; change "
            f"its permissions, or {advice}"
        )


def run_folders() -> list[Path]:
    """Return the entries of `runs/` and of the sweeps in it; none if it does not exist.

    Raises Unreadable if it cannot be listed.
    """
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
            _undo_killed_overwrite(run)
            if has_checkpoint(run) or is_checkpoint(run):
                return run
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                break
            raise
        if is_run(run):
            if is_running(run):
                raise UsageError(
                    f"{run} has no checkpoint yet and is being written by another process "
                    f"({_writer(run)}); wait for its first checkpoint"
                )
            raise UsageError(
                f"{run} has no checkpoint yet: its first one was not completed; start it again "
                f"with --overwrite --run-dir {shlex.quote(str(run))}"
            )
        if is_sweep(run):
            names = sorted(entry.name for entry in run.iterdir() if is_run(entry))
            such = f", such as {run / names[0]}" if names else ", of which none has begun"
            raise UsageError(f"{run} is a sweep; expected one of its runs{such} (see gpt runs)")
    raise _no_such_run(name, "a run with a checkpoint")


def _no_such_run(name: str, expected: str) -> UsageError:
    """Return the error for a name that is no run's, with the most similar name of one."""
    near: list[str] = []
    with suppress(Unreadable):
        names = [run.name for run in run_folders() if is_run(run) or is_sweep(run)]
        near = difflib.get_close_matches(name, names, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return UsageError(f"{name}: expected the folder of {expected}, or its name in runs/{meant}")


def find_teacher(name: str) -> Path:
    """Return the folder of the run in `train.distill`. For errors see `find_run`."""
    try:
        return find_run(name)
    except UsageError as error:
        raise UsageError(f"train.distill: {error}") from error


def find_sweep(name: str | None) -> Path | None:
    """Return the folder of a sweep by its path or its name under `runs/`; None if there is none.

    The default is the sweep that contains the newest run.
    """
    if name is None:
        run = find_run(None)
        return run.parent if is_sweep(run.parent) else None
    return next((folder for folder in (Path(name), RUNS / name) if is_sweep(folder)), None)


def is_sweep(folder: Path) -> bool:
    """Return whether this is the folder of a sweep, which contains runs."""
    return os.path.isfile(folder / SWEEP)  # noqa: PTH113 (no errors)


def has_checkpoint(run: Path) -> bool:
    """Return whether the run has a checkpoint to resume from, intact or not."""
    folder = run / "checkpoints"
    # a kill between two renames leaves the only one under its other name, for a resume to repair
    return bool(steps_in(folder)) or any(folder.glob(".step-*.replaced"))


def is_run(folder: Path) -> bool:
    """Return whether this is the folder of a run, in any state."""
    return (folder / "config.yaml").is_file() or has_checkpoint(folder)


def find_to_delete(name: str) -> Path:
    """Return the folder of a run or sweep, whatever its state, by its path or name in `runs/`.

    Raises:
        UsageError: there is none.
    """
    folders = (Path(name), RUNS / name)
    found = find_sweep(name) or next((folder for folder in folders if is_run(folder)), None)
    if found is None:
        raise _no_such_run(name, "a run")
    return found


def delete_run(name: str) -> Path:
    """Delete what a run wrote, by its path or its name under `runs/`; return its folder.

    The folder goes too, unless it has files of somebody else. Of a sweep, all runs are deleted.

    Raises:
        UsageError: there is no such run, or it is being written.
    """
    run = find_to_delete(name)
    if is_sweep(run):
        delete_sweep(run)
    else:
        _delete(run)
    return run


def delete_sweep(sweep: Path) -> None:
    """Delete all runs of a sweep. Raises UsageError if one is being written."""
    with _lock(sweep):
        for run in filter(is_run, sorted(sweep.iterdir())):
            _delete(run)
        (sweep / STORED_INPUT).unlink(missing_ok=True)
        (sweep / SWEEP).unlink()
    _remove_if_empty(sweep)


def _delete(run: Path) -> None:
    with _lock(run):
        finish_overwrite(run)
        empty(run)
    _remove_if_empty(run)


def _remove_if_empty(folder: Path) -> None:
    for name in (LOCK, WRITER):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        folder.rmdir()


def check_free(run: Path, *, overwrite: bool) -> None:
    """Raises UsageError if the folder is in use; with `overwrite`, only if not by a run.

    Raises GPTError if it can be neither made nor written to.
    """
    if not str(run).isprintable():
        raise UsageError(f"{str(run)!a}: expected a folder's name in printable characters")
    _undo_killed_overwrite(run)
    if not run.exists() or (
        run.is_dir() and all(entry.name.startswith(".") for entry in run.iterdir())
    ):  # but for our lock, and what a kill left half written
        check_can_be_made(run)
        return
    if not run.is_dir():
        raise UsageError(f"--run-dir {run}: expected a folder's name, got a file or device")
    if not overwrite:
        resume = f"resume it by --resume {shlex.quote(str(run))}, " if has_checkpoint(run) else ""
        raise UsageError(
            f"{run} exists; {resume}replace it by --overwrite, or choose another --run-dir"
        )
    if not (run / "config.yaml").is_file():
        raise UsageError(f"{run} is not the folder of a run, so --overwrite leaves it alone")
    check_can_be_made(run)
    if is_running(run):
        raise _in_use(run)


def check_keeps(folder: Path, config: Config) -> None:
    """Raises UsageError if to overwrite this run or sweep would remove a run that is needed."""
    needed_runs = source_runs(config)
    if config.data.vocabulary not in ("characters", "bytes"):
        needed_runs["data.vocabulary"] = config.data.vocabulary
    for key, name in needed_runs.items():
        needed = None
        with suppress(UsageError):  # reported later
            needed = find_run(name).resolve()
        if needed and folder.resolve() in (needed, *needed.parents):
            raise UsageError(
                f"{folder}: expected another folder than that of {key} {name}, which --overwrite "
                f"would remove; choose another --run-dir"
            )


def source_runs(config: Config) -> dict[str, str]:
    """Return the runs that this config loads weights from, by setting."""
    runs = {"train.init_from": config.train.init_from, "train.distill": config.train.distill}
    return {key: run for key, run in runs.items() if run is not None}


def check_plain(run: Path) -> None:
    """Raise UsageError if what a run writes to is a link, perhaps to nowhere, a pipe or a device.

    A run may come from a stranger, and is not to write outside of its folder.
    """
    patterns = (*WRITTEN, LOCK, WRITER)
    for entry in chain(_entries(run, patterns), _entries(run / "projector", ("*",))):
        mode = entry.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UsageError(f"{entry}: expected a file or folder of the run, got a link or pipe")


def empty(run: Path) -> None:
    """Remove what a run writes, and nothing else."""
    for entry in _written(run):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _written(run: Path) -> list[Path]:
    return _entries(run, WRITTEN)


def set_aside(run: Path) -> None:
    """Move what the run in this folder wrote into `REPLACED`, so that a new run can overwrite it.

    `finish_overwrite` ends that. A kill between two moves leaves `MOVING`, whose entries it moves
    back.
    """
    if entries := _written(run):
        (run / MOVING).mkdir()
        for entry in entries:
            entry.rename(run / MOVING / entry.name)
        (run / MOVING).rename(run / REPLACED)


def finish_overwrite(run: Path) -> None:
    """Delete what `set_aside` moved, or move it back if the new run has no checkpoint yet.

    The caller has the lock of the run.
    """
    replaced, moving = run / REPLACED, run / MOVING
    if _is_folder(replaced):
        if has_checkpoint(run):
            shutil.rmtree(replaced)
        else:
            empty(run)
            replaced.rename(moving)
    if _is_folder(moving):
        for entry in moving.iterdir():
            entry.rename(run / entry.name)
        moving.rmdir()


def _undo_killed_overwrite(run: Path) -> None:
    if any(_is_folder(run / name) for name in (REPLACED, MOVING)) and not is_running(run):
        with locked(run):  # which finishes it
            pass


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114 (no errors)


def _entries(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the entries with such a name, also links to nowhere, which `Path.glob` leaves out."""
    with suppress(FileNotFoundError, NotADirectoryError):
        entries = sorted(folder.iterdir())
        return [e for e in entries if any(fnmatchcase(e.name, pattern) for pattern in patterns)]
    return []


@contextmanager
def locked(run: Path) -> Iterator[Callable[[], None]]:
    """Lock a run. The system releases the lock if the process dies.

    Calls `finish_overwrite` before and after. Yields a function to call before each write: it
    raises TrainingError if the folder was moved or removed.

    Raises:
        UsageError: another process has the lock.
    """
    run = run.absolute()  # wherever the caller changes to
    writer = json.dumps({"pid": os.getpid(), "host": platform.node(), "id": os.urandom(8).hex()})

    def is_in_place() -> bool:
        with suppress(OSError):
            return (run / WRITER).read_text("utf-8") == writer
        return False

    def check_in_place() -> None:
        if not is_in_place():
            raise TrainingError(
                f"{run} was moved or removed while it was being written, so nothing more is saved; "
                f"its last checkpoint is where it was moved to: resume it with gpt train --resume "
                f"and that name"
            )

    with _lock(run):
        try:
            write_atomically(run / WRITER, [writer.encode()])
            finish_overwrite(run)  # of a process that was killed
            yield check_in_place
        finally:
            if is_in_place():
                finish_overwrite(run)
                (run / WRITER).unlink()


@contextmanager
def _lock(run: Path) -> Iterator[None]:
    """Lock the folder without writing to it, which works on a full disk.

    Raises UsageError if another process has the lock.
    """
    from filelock import FileLock, Timeout  # 0.1 s, which other commands need not take

    check_plain(run)
    lock = FileLock(run / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise _in_use(run) from None
    try:
        yield
    finally:
        lock.release()


def _writer(run: Path) -> str:
    """Return the process that has the lock, for a message."""
    try:
        writer = json.loads((run / WRITER).read_text("utf-8"))
        return f"process {int(writer['pid'])} on {writer['host']!s:.99}"
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def _in_use(run: Path) -> UsageError:
    return UsageError(
        f"{run} is being written by another process ({_writer(run)}); wait for it, or stop it"
    )


def is_running(run: Path) -> bool:
    """Return whether a process on this machine writes the run."""
    import psutil  # 0.1 s, which other commands need not take

    try:
        writer = json.loads((run / WRITER).read_text("utf-8"))
        process = psutil.Process(int(writer["pid"]))
        # another process may have that number by now, or that one was killed and is not reaped
        is_writer = process.create_time() <= (run / WRITER).stat().st_mtime + 1
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        return bool(writer["host"] == platform.node() and is_writer and is_alive)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, psutil.Error):
        return False
