"""The folder of a run: named, made, found, and checked before it is gone on with.

Knows no torch, so that a wrong name is told at once.
"""

import shutil
from pathlib import Path

from gpt.config import Config, fields
from gpt.errors import ConfigError, UsageError

RUNS = Path("runs")
WRITTEN = (  # by a run, into its folder
    *("checkpoints", "metrics.jsonl", "config.yaml"),
    *("events.out.tfevents.*", "projector", "projector_config.pbtxt"),
)
SAFE_TO_CHANGE = (  # on resume: the past stays what it was
    "device",
    "data.source",  # the text itself is known by its hash
    "train.steps",
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


def free_name(stem: str) -> Path:
    """`runs/STEM`, or the first of `runs/STEM-2`, `runs/STEM-3`, ... that does not exist."""
    run, number = RUNS / stem, 1
    while run.exists():
        number += 1
        run = RUNS / f"{stem}-{number}"
    return run


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
        if (run / "checkpoints" / "last").exists():
            return run
    raise UsageError(
        f"{name}: expected the folder of a run with a checkpoint, or its name in runs/"
    )


def check_free(run: Path, *, overwrite: bool) -> None:
    """Raises UsageError if the folder is in use; with `overwrite`, only if not by a run."""
    if not str(run).isprintable():
        raise UsageError(f"{str(run)!a}: expected a folder's name in printable characters")
    if not run.exists() or (run.is_dir() and not any(run.iterdir())):
        return
    if not overwrite:
        resumable = (run / "checkpoints" / "last").exists()
        go_on = f"go on with it by --resume {run}, " if resumable else ""
        raise UsageError(
            f"{run} exists; {go_on}replace it by --overwrite, or choose another --run-dir"
        )
    if not (run / "config.yaml").is_file():
        raise UsageError(f"{run} is not the folder of a run, so --overwrite leaves it alone")


def make_folder(run: Path, *, overwrite: bool) -> None:
    """Make the folder of a new run; of an old one, remove what a run writes and nothing else.

    Raises UsageError as `check_free` does.
    """
    check_free(run, overwrite=overwrite)
    run.mkdir(parents=True, exist_ok=True)
    for pattern in WRITTEN:
        for entry in run.glob(pattern):
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def check_resumable(old: Config, new: Config) -> None:
    """Raises ConfigError if a setting was changed that would make it another run."""
    before = {key: value for key, _, value in fields(old)}
    changed = [
        f"{key} ({before[key]} to {value})"
        for key, _, value in fields(new)
        if value != before[key] and key not in SAFE_TO_CHANGE
    ]
    if changed:
        raise ConfigError(
            f"--resume goes on with the same run, so it cannot change {', '.join(changed)}; "
            f"start a new run, or change only {', '.join(SAFE_TO_CHANGE)}"
        )
