"""Lock the folder of a run while it is written, and overwrite a run without losing it to a kill.

Overwriting: `set_aside` moves what the old run wrote into `.replaced`. Once the new run has a
checkpoint, `finish_overwrite` deletes that; if the new run was killed before, it moves all back.
"""

import fnmatch
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpt.errors import UsageError
from gpt.runs.format import has_checkpoint
from gpt.text.standard_input import STORED_INPUT

LOCK = ".lock"
LOCK_TIMEOUT_S = 0.2  # seconds to wait for a lock, which `is_running` holds for a moment
REPLACED_FOLDER = ".replaced"  # folder in a run that is overwritten
WRITTEN = (  # files and folders that a run writes, as globs; `set_aside` keeps this order
    "checkpoints",
    "metrics.jsonl",
    "provenance.jsonl",
    STORED_INPUT,
    "events.out.tfevents.*",
    "projector",
    "projector_config.pbtxt",
    "config.yaml",  # last, as it marks the folder of a run
)


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Lock a run, and call `finish_overwrite` before and after.

    The system releases the lock if the process dies. Raises UsageError if another process has it.
    """
    from filelock import FileLock, Timeout  # takes 0.1 s, which other commands save

    run = run.absolute()  # the caller may change the working folder
    check_plain(run)
    try:
        with FileLock(run / LOCK, timeout=LOCK_TIMEOUT_S):
            finish_overwrite(run)  # an overwrite by a process that was killed
            try:
                yield
            finally:
                finish_overwrite(run)
    except Timeout:
        raise in_use(run) from None


def check_plain(run: Path) -> None:
    """Raise UsageError if a file of a run, perhaps a stranger's, is a link out of its folder."""
    for entry in _entries(run, *WRITTEN, LOCK) + _entries(run / "projector", "*"):
        mode = entry.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UsageError(f"{entry}: expected a file or folder of the run, got a link or pipe")


def is_running(run: Path) -> bool:
    """Return whether a process is writing the run."""
    from filelock import FileLock, Timeout  # takes 0.1 s, which other commands save

    try:
        if (run / LOCK).exists():
            with FileLock(run / LOCK, timeout=0):
                pass
    except Timeout:
        return True
    except OSError:  # this user may only read the run
        pass
    return False


def in_use(run: Path) -> UsageError:
    """Return the error for a run that another process is writing."""
    return UsageError(f"{run} is being written by another process; wait for it, or stop it")


def empty(run: Path) -> None:
    """Remove what a run writes, and nothing else."""
    for entry in _entries(run, *WRITTEN):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def set_aside(run: Path) -> None:
    """Move what the run in this folder wrote aside, so that a new run can overwrite it."""
    if entries := _entries(run, *WRITTEN):
        (run / REPLACED_FOLDER).mkdir()
        for entry in entries:
            entry.rename(run / REPLACED_FOLDER / entry.name)


def finish_overwrite(run: Path) -> None:
    """Delete what `set_aside` moved, or move it back if the new run has no checkpoint yet.

    The caller has the lock of the run. A kill can interrupt the moves in both directions:
    - `checkpoints` is moved aside first and back last, so `run` has a checkpoint only if it is the
      new run's, or if nothing or everything of the old run is in `run`.
    - `config.yaml` is moved aside last and back first, so the new run has written to `run` only if
      the old config is still aside.
    """
    replaced = run / REPLACED_FOLDER
    if not _is_folder(replaced):
        return
    if has_checkpoint(run):
        shutil.rmtree(replaced)
        return
    if (replaced / "config.yaml").exists():
        empty(run)
    for entry in reversed(_entries(replaced, *WRITTEN)):
        entry.rename(run / entry.name)
    replaced.rmdir()


def undo_killed_overwrite(run: Path) -> None:
    """Move the old run back if the process that was overwriting it was killed."""
    if _is_folder(run / REPLACED_FOLDER) and not is_running(run):
        with locked(run):  # calls `finish_overwrite`
            pass


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114 (no errors)


def _entries(folder: Path, *patterns: str) -> list[Path]:
    """Return the entries that match, by pattern; also dangling links, which `Path.glob` skips."""
    names = list[str]()
    with suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(os.listdir(folder))  # noqa: PTH208 (names)
    return [folder / name for pattern in patterns for name in fnmatch.filter(names, pattern)]
