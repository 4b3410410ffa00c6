"""Lock the folder of a run while it is written, and overwrite a run without losing it to a kill.

Overwriting: `set_aside` moves what the old run wrote into `.replaced`. Once the new run has a
checkpoint, `finish_overwrite` deletes that; if the new run was killed before, it moves all back.
"""

import json
import os
import platform
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from gpt.errors import TrainingError, UsageError
from gpt.files import write_atomically
from gpt.runs.format import has_checkpoint
from gpt.text.standard_input import STORED_INPUT

LOCK = ".lock"
WRITER = ".writer.json"  # describes the process that has the lock
REPLACED_FOLDER, MOVING_FOLDER = ".replaced", ".moving"  # folders in a run that is overwritten
WRITTEN = (  # files and folders that a run writes, as globs
    "checkpoints",
    "metrics.jsonl",
    "provenance.jsonl",
    STORED_INPUT,
    "events.out.tfevents.*",
    "projector",
    "projector_config.pbtxt",
    "config.yaml",  # removed last, as it marks the folder of a run
)


@contextmanager
def locked(run: Path) -> Iterator[Callable[[], None]]:
    """Lock a run; the system releases the lock if the process dies.

    Calls `finish_overwrite` before and after. Yields a function to call before each write: it
    raises TrainingError if the folder was moved or removed. Raises UsageError if another process
    has the lock.
    """
    run = run.absolute()  # the caller may change the working folder
    writer = json.dumps({"pid": os.getpid(), "host": platform.node(), "id": os.urandom(8).hex()})

    def is_in_place() -> bool:
        with suppress(OSError):
            return (run / WRITER).read_text("utf-8") == writer
        return False

    def check_in_place() -> None:
        if not is_in_place():
            raise TrainingError(
                f"{run} was moved or removed while it was being written, so nothing more is "
                f"saved; resume it from its new place: gpt train --resume"
            )

    with lock_without_writing(run):
        try:
            write_atomically(run / WRITER, [writer.encode()])
            finish_overwrite(run)  # an overwrite by a process that was killed
            yield check_in_place
        finally:
            if is_in_place():
                finish_overwrite(run)
                (run / WRITER).unlink()


@contextmanager
def lock_without_writing(run: Path) -> Iterator[None]:
    """Lock the folder without naming the process in it, which works on a full disk."""
    from filelock import FileLock, Timeout  # takes 0.1 s, which other commands save

    check_plain(run)
    try:
        with FileLock(run / LOCK, timeout=0):
            yield
    except Timeout:
        raise in_use(run) from None


def check_plain(run: Path) -> None:
    """Raise UsageError if a file of a run, perhaps a stranger's, is a link out of its folder."""
    for entry in _entries(run, *WRITTEN, LOCK, WRITER) + _entries(run / "projector", "*"):
        mode = entry.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UsageError(f"{entry}: expected a file or folder of the run, got a link or pipe")


def is_running(run: Path) -> bool:
    """Return whether a process on this machine is writing the run."""
    import psutil  # takes 0.1 s, which other commands save

    try:
        pid, host = _writer(run)
        process = psutil.Process(pid)
        # the pid may belong to a newer process; a killed one remains a zombie until it is reaped
        is_writer = process.create_time() <= (run / WRITER).stat().st_mtime + 1
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        return bool(host == platform.node() and is_writer and is_alive)
    except (OSError, ValueError, OverflowError, psutil.Error):
        return False


def in_use(run: Path) -> UsageError:
    """Return the error for a run that another process is writing."""
    pid, host = _writer(run)
    return UsageError(
        f"{run} is being written by another process (process {pid} on {host}); wait for it, or "
        f"stop it"
    )


def _writer(run: Path) -> tuple[int, str]:
    """Return the process that has the lock and its machine; (0, "unknown") if they are unknown."""
    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        writer = json.loads((run / WRITER).read_text("utf-8"))
        return int(writer["pid"]), f"{writer['host']!s:.99}"
    return 0, "unknown"


def empty(run: Path) -> None:
    """Remove what a run writes, and nothing else."""
    for entry in _entries(run, *WRITTEN):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def set_aside(run: Path) -> None:
    """Move what the run in this folder wrote aside, so that a new run can overwrite it.

    A kill between two moves leaves MOVING_FOLDER; `finish_overwrite` moves its entries back.
    """
    if entries := _entries(run, *WRITTEN):
        (run / MOVING_FOLDER).mkdir()
        for entry in entries:
            entry.rename(run / MOVING_FOLDER / entry.name)
        (run / MOVING_FOLDER).rename(run / REPLACED_FOLDER)


def finish_overwrite(run: Path) -> None:
    """Delete what `set_aside` moved, or move it back if the new run has no checkpoint yet.

    The caller has the lock of the run.
    """
    replaced, moving = run / REPLACED_FOLDER, run / MOVING_FOLDER
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


def undo_killed_overwrite(run: Path) -> None:
    """Move the old run back if the process that was overwriting it was killed."""
    is_overwritten = _is_folder(run / REPLACED_FOLDER) or _is_folder(run / MOVING_FOLDER)
    if is_overwritten and not is_running(run):
        with locked(run):  # calls `finish_overwrite`
            pass


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114 (no errors)


def _entries(folder: Path, *patterns: str) -> list[Path]:
    """Return the entries whose names match, also dangling links, which `Path.glob` skips."""
    with suppress(FileNotFoundError, NotADirectoryError):
        entries = sorted(folder.iterdir())
        return [e for e in entries if any(fnmatchcase(e.name, pattern) for pattern in patterns)]
    return []
