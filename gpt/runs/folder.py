"""The folder of a run: named, made, found, and checked before it is gone on with.

Knows no torch, so that a wrong name is told at once.
"""

import fcntl
import json
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from gpt import __version__
from gpt.config.schema import Config, fields
from gpt.errors import ConfigError, TrainingError, UsageError

log = logging.getLogger(__name__)

RUNS = Path("runs")
LOCK = ".lock"
WRITTEN = (  # by a run, into its folder
    *("checkpoints", "metrics.jsonl", "provenance.jsonl"),
    *("events.out.tfevents.*", "projector", "projector_config.pbtxt"),
    "config.yaml",  # removed last: by it a folder is known to be a run's
)
SAFE_TO_CHANGE = (  # on resume: the past stays what it was
    "device",
    "data.source",  # the text itself is known by its hash
    "train.steps",
    "train.auto_batch",
    "train.compile",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.sample_length",
    "train.histograms",
    "train.stop_at_val_loss",
    "train.patience",
    "sample.length",
    "sample.temperature",
    "sample.top_k",
)


def make_numbered(run: Path) -> Path:
    """Make that folder, or the first of RUN-2, RUN-3, ... that does not exist; its path."""
    made, number = run, 1
    while True:
        try:
            made.mkdir(parents=True)
        except FileExistsError:
            number += 1
            made = run.with_name(f"{run.name}-{number}")
        else:
            return made


def find_run(name: str | None) -> Path:
    """The run folder of that path, or of that name under `runs/`; without a name, the newest run.

    Raises:
        UsageError: there is no such run, or it has no checkpoint yet.
    """
    if name is None:
        runs = sorted(RUNS.glob("*/checkpoints/last"), key=lambda last: last.lstat().st_mtime)
        if not runs:
            raise UsageError("no run under runs/ has a checkpoint; start one with: gpt train")
        return runs[-1].parent.parent
    for run in (Path(name), RUNS / name):
        if _has_checkpoint(run):
            return run
    raise UsageError(
        f"{name}: expected the folder of a run with a checkpoint, or its name in runs/"
    )


def _has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("*/model.safetensors"))


def check_free(run: Path, *, overwrite: bool) -> None:
    """Raises UsageError if the folder is in use; with `overwrite`, only if not by a run."""
    if not str(run).isprintable():
        raise UsageError(f"{str(run)!a}: expected a folder's name in printable characters")
    if not run.exists() or (
        run.is_dir() and all(entry.name.startswith(".") for entry in run.iterdir())
    ):  # but for our lock, and what a kill left half written
        return
    if not overwrite:
        go_on = (
            f"go on with it by --resume {shlex.quote(str(run))}, " if _has_checkpoint(run) else ""
        )
        raise UsageError(
            f"{run} exists; {go_on}replace it by --overwrite, or choose another --run-dir"
        )
    if not (run / "config.yaml").is_file():
        raise UsageError(f"{run} is not the folder of a run, so --overwrite leaves it alone")


def check_plain(run: Path) -> None:
    """Raises UsageError if what a run writes to is a link, to who knows where, or a device."""
    for pattern in (*WRITTEN, LOCK, "projector/*"):
        for entry in run.glob(pattern):
            mode = entry.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UsageError(
                    f"{entry}: expected a file or folder of the run, got a link or pipe"
                )


def empty(run: Path) -> None:
    """Remove what a run writes, and nothing else."""
    for pattern in WRITTEN:
        for entry in run.glob(pattern):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


@contextmanager
def locked(run: Path) -> Iterator[Callable[[], None]]:
    """Keep the run to this process. The system lets go of the lock if the process dies.

    Gives a check to be made before anything is put into the folder by its name: it raises
    TrainingError if the folder was moved or removed. Raises UsageError if another process has it.
    """

    def check_in_place() -> None:
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), (run / LOCK).stat()):
                return
        raise TrainingError(
            f"{run} was moved or removed while it was being written, so nothing more is saved; its "
            f"last checkpoint is where it was moved to: go on with gpt train --resume and that name"
        )

    descriptor = os.open(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{run} is being written by another process ({file.read(100).strip()}); wait for "
                f"it, or stop it"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        yield check_in_place


def note_start(
    run: Path, config: Config, text_sha256: str, step: int, computed: Mapping[str, str | int]
) -> None:
    """One more line of provenance.jsonl: what began here, or went on from this step, with what.

    `computed` says on what, and how: the last digits depend on it.
    """
    packages = ("torch", "numpy", "safetensors")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seed": config.seed,
        "text_sha256": text_sha256,
        "gpt": __version__,
        "git_commit": _git_commit(),
        **computed,
        **{package: metadata.version(package) for package in packages},
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    with (run / "provenance.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _git_commit() -> str | None:
    """The commit of this program, with a + if it was changed since; None if it is not in git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    known = [*git, "ls-files", "--error-unmatch", Path(__file__).name]  # or it is another program's
    try:
        subprocess.run(known, capture_output=True, check=True, timeout=5)
        commit = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=5
        )
        changes = subprocess.run(
            [*git, "status", "--porcelain", "-uno", "."], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + ("+" if changes.stdout else "")


def check_resumable(old: Config, new: Config) -> None:
    """Say which settings were changed. Raises ConfigError if one would make it another run."""
    before = {key: value for key, _, value in fields(old)}
    changes = {
        key: f"{key} ({before[key]} to {value})"
        for key, _, value in fields(new)
        if value != before[key]
    }
    if allowed := [change for key, change in changes.items() if key in SAFE_TO_CHANGE]:
        log.info("changed: %s", ", ".join(allowed))
    if changed := [change for key, change in changes.items() if key not in SAFE_TO_CHANGE]:
        raise ConfigError(
            f"--resume goes on with the same run, so it cannot change {', '.join(changed)}; "
            f"start a new run, or change only {', '.join(SAFE_TO_CHANGE)}"
        )
