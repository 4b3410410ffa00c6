"""Lock a run's folder while a process writes it; undo an overwrite that a kill interrupted."""

import fnmatch
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpt.errors import UsageError
from gpt.runs.format import has_checkpoint
from gpt.text.cache import STORED_INPUT

LOCK = ".lock"
LOCK_TIMEOUT_S = 0.2  # seconds to wait for a lock, which `is_running` may hold for a moment
REPLACED_FOLDER = ".replaced"  # contains the files of the old run while it is overwritten
WRITTEN = (  # globs of the files and folders of a run, in the order in which they are moved
    "checkpoints",
    "metrics.jsonl",
    "provenance.jsonl",
    STORED_INPUT,
    "events.out.tfevents.*",
    "config.yaml",  # must be last: see `finish_overwrite`
)


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Lock a run in a `with` block, and call `finish_overwrite` before and after the block."""
    from filelock import FileLock, Timeout  # this import takes 0.1 s, so only do it if needed

    run = run.absolute()  # the caller may change the working folder
    check_plain(run)
    try:
        with FileLock(run / LOCK, timeout=LOCK_TIMEOUT_S):
            finish_overwrite(run)  # a process may have been killed while it overwrote the run
            try:
                yield
            finally:
                finish_overwrite(run)
    except Timeout:
        raise in_use(run) from None


def check_plain(run: Path) -> None:
    """Raise UsageError if a file of a run is a pipe, or a link, which may lead out of the run."""
    for entry in _entries(run, *WRITTEN, LOCK):
        mode = entry.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UsageError(f"{entry}: expected a file or folder of the run, got a link or pipe")


def is_running(run: Path) -> bool:
    """Return whether a process is writing the run."""
    from filelock import FileLock, Timeout  # this import takes 0.1 s, so only do it if needed

    try:
        if (run / LOCK).exists():
            with FileLock(run / LOCK, timeout=0):
                pass
    except Timeout:
        return True
    except OSError:  # this user has no permission to write the run
        pass
    return False


def in_use(run: Path) -> UsageError:
    """Return the error for a run that another process is writing."""
    return UsageError(f"{run} is being written by another process; wait for it, or stop it")


def empty(run: Path) -> None:
    """Remove a run's files and folders from the folder `run`; keep all other entries."""
    for entry in _entries(run, *WRITTEN):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def set_aside(run: Path) -> None:
    """Move the files of a run into `.replaced`, so that a new run can be written in its folder."""
    if entries := _entries(run, *WRITTEN):
        (run / REPLACED_FOLDER).mkdir()
        for entry in entries:
            entry.rename(run / REPLACED_FOLDER / entry.name)


def finish_overwrite(run: Path) -> None:
    """Complete the overwrite of a run if the new run has a checkpoint, otherwise undo it.

    Completing it deletes the old files, which `set_aside` moved; undoing it moves them back. The
    caller must hold the lock of the run. The order of the moves makes this safe even if a
    process is killed between two moves.

    - `checkpoints` is moved into `.replaced` first, and back last. If `run` has a checkpoint, then
      either the new run wrote it, or `.replaced` is empty. Thus `.replaced` can be deleted.
    - `config.yaml` is moved into `.replaced` last, and back first. While it is in `.replaced`,
      so are all other old files. Thus the files in `run` are of the new run, and are removed.
    """
    replaced = run / REPLACED_FOLDER
    if not _is_folder(replaced):
        return
    if has_checkpoint(run):
        shutil.rmtree(replaced)
        return
    old = _entries(replaced, *WRITTEN)
    # `run` has only new files if either is true; the second is for old runs without config.yaml
    if (replaced / "config.yaml").exists() or any(os.path.lexists(run / each.name) for each in old):
        empty(run)
    for entry in reversed(old):
        entry.rename(run / entry.name)
    replaced.rmdir()


def undo_killed_overwrite(run: Path) -> None:
    """If a process was killed while it overwrote the run, complete or undo the overwrite."""
    if _is_folder(run / REPLACED_FOLDER) and not is_running(run):
        with locked(run):  # calls `finish_overwrite`
            pass


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114 (Path can raise)


def _entries(folder: Path, *patterns: str) -> list[Path]:
    """List entries (also dangling links) of `folder` that match `patterns`, in pattern order."""
    names = list[str]()
    with suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(os.listdir(folder))  # noqa: PTH208 (names, not paths)
    return [folder / name for pattern in patterns for name in fnmatch.filter(names, pattern)]
