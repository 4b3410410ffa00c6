"""Make, check and delete the folder of a run."""

import os
import shlex
import unicodedata
from contextlib import suppress
from itertools import count
from pathlib import Path

from gpt.config.schema import Config
from gpt.errors import GPTError, UsageError, shown
from gpt.runs.find import SWEEP, check_ours, find_run, is_ours, is_sweep
from gpt.runs.format import has_checkpoint
from gpt.runs.lock import LOCK, empty, in_use, is_running, locked, undo_killed_overwrite
from gpt.text.standard_input import STORED_INPUT


def make_numbered(run: Path) -> Path:
    """Make `run`, or the first of RUN-2, RUN-3, ... that does not exist; return its path."""
    check_can_be_made(run.parent)
    run.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        made = run if number == 1 else run.with_name(f"{run.name}-{number}")
        with suppress(FileExistsError):
            made.mkdir()
            return made
    raise AssertionError("count() has no end")


def check_can_be_made(path: Path) -> None:
    """Raise GPTError unless `path` is a writable folder, or can be made as one."""
    above = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise GPTError(
            f"{above}: expected a folder that you may write to; change its permissions, remove the "
            f"file or link of that name, or choose another --run-dir"
        )


def check_free(run: Path, *, overwrite: bool) -> None:
    """Raise UsageError or GPTError if a new run cannot be written in the folder `run`.

    The folder must be missing or empty. With `overwrite`, it may also contain a run, unless a
    process is writing that run.
    """
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in str(run)):
        raise UsageError(f"{shown(str(run))}: expected a folder's name without control characters")
    undo_killed_overwrite(run)
    if run.exists() and not run.is_dir():
        raise UsageError(f"--run-dir {run}: expected a folder's name, got a file or device")
    # hidden entries are our lock and temporary files of killed processes
    if run.exists() and not all(entry.name.startswith(".") for entry in run.iterdir()):
        if not overwrite:
            resume = f"resume it by --resume {shlex.quote(str(run))}, "
            advice = f"{resume if has_checkpoint(run) else ''}replace it by --overwrite"
            raise UsageError(f"{run} exists; {advice}, or choose another --run-dir")
        check_ours(run)
        if is_sweep(run):
            raise UsageError(
                f"{run} is a sweep, which --overwrite does not replace; delete it by gpt runs "
                f"--delete {shlex.quote(str(run))}, or choose another --run-dir"
            )
        if is_running(run):
            raise in_use(run)
    check_can_be_made(run)


def check_keeps(folder: Path, config: Config) -> None:
    """Raise UsageError if overwriting `folder` would delete a run or text that `config` reads."""
    settings = {
        "train.init_from": config.train.init_from,
        "data.vocabulary": config.data.vocabulary,
    }
    data = config.data
    for key, texts in (("data.source", data.source), ("data.val_source", data.val_source)):
        for text in [texts] if isinstance(texts, str) else texts or []:
            if folder.resolve() in (path := Path(text).resolve(), *path.parents):
                raise UsageError(
                    f"{folder}: --overwrite would delete {text}, which {key} needs; move it, or "
                    f"choose another --run-dir"
                )
    for key, name in settings.items():
        if name in (None, "characters", "bytes"):
            continue
        try:
            needed = find_run(name).resolve()
        except UsageError:  # no such run; reported later
            continue
        if folder.resolve() in (needed, *needed.parents):
            raise UsageError(
                f"{folder}: --overwrite would delete {name}, which {key} needs; choose another "
                f"--run-dir"
            )


def delete_run(folder: Path) -> None:
    """Delete the files of a run or of all runs of a sweep, and its folder if it is then empty.

    Raise UsageError if another process is writing a run.
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
