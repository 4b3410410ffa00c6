"""What is left of a run after a crash or a failing disk, and what may change as it is resumed."""

import logging
import re
import shutil
from pathlib import Path

from gpt.config.schema import Config, fields
from gpt.config.yaml import as_flow
from gpt.errors import CheckpointError, ConfigError, command
from gpt.runs.checkpoint import (
    CheckpointData,
    TrainingState,
    read_summary,
    read_to_resume,
    step_folder,
    steps_in,
    write_index,
)
from gpt.runs.folder import locked

log = logging.getLogger(__name__)

SAFE_TO_CHANGE = (  # on resume: the past stays what it was
    "device",
    "threads",
    *("data.source", "data.val_source"),
    *("data.include", "data.exclude", "data.column", "data.bad_records"),  # the text has its hash
    "data.encoding",
    "train.distill",  # so is its model
    *("train.steps", "train.minutes", "train.max_steps", "train.plans"),
    "train.rewarm_steps",
    *("train.auto_batch", "train.parallel"),
    "train.compile",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.sample_length",
    "train.histograms",
    "train.stop_at_val_loss",
    "train.patience",
    "sample.length",
    "sample.temperature",
    "sample.top_k",
    "sample.top_p",
    "sample.min_p",
    "sample.presence_penalty",
    "sample.frequency_penalty",
    "sample.context_after_overflow",
)


def recover(run: Path) -> tuple[CheckpointData, TrainingState]:
    """The newest intact checkpoint of a run, which becomes `last`; each file is read once.

    Damaged ones after it are set aside, with a warning.

    Raises:
        CheckpointError: there is none; it says what is wrong with the newest.
        Unreadable: one cannot be read, and so is not known to be damaged: all is left as it is.
    """
    folder = run / "checkpoints"
    _finish_renames(folder)
    damaged: dict[int, CheckpointError] = {}
    for step in reversed(steps_in(folder)):
        try:
            data, state = read_to_resume(run, step)
        except CheckpointError as error:
            damaged[step] = error
            continue
        for other, reason in damaged.items():
            aside = folder / f"damaged-step-{other}"
            log.warning("%s; kept as %s, rolling back to step %d", reason, aside.name, step)
            shutil.rmtree(aside, ignore_errors=True)
            step_folder(folder, other).rename(aside)
        write_index(folder, data)
        return data, state
    raise _nothing_to_resume(run, damaged)


def summary_to_resume(run: Path) -> CheckpointData:
    """The newest checkpoint of which the config can be read, without its weights.

    Raises:
        CheckpointError: there is none; it says what is wrong with the newest.
        UsageError: another process writes the run.
    """
    damaged: dict[int, CheckpointError] = {}
    with locked(run):
        _finish_renames(run / "checkpoints")
        for step in reversed(steps_in(run / "checkpoints")):
            try:
                return read_summary(run, step)
            except CheckpointError as error:
                damaged[step] = error
    raise _nothing_to_resume(run, damaged)


def _nothing_to_resume(run: Path, damaged: dict[int, CheckpointError]) -> CheckpointError:
    """Return the error for a run of which every checkpoint is damaged."""
    folder = run / "checkpoints"
    if not damaged:
        return CheckpointError(f"{folder}: no checkpoint")
    step, error = next(iter(damaged.items()))
    if error.__cause__ is None:  # of another format, say: it tells all
        return error
    reason = " ".join(str(error.__cause__).split())
    again = command(
        *("train", "--config", str(run / "config.yaml"), "--run-dir", str(run), "--overwrite")
    )
    return CheckpointError(
        f"{run} cannot be resumed: none of its checkpoints is intact; step-{step} is damaged "
        f"({reason:.300}). Copy {folder} from a backup, or train the run again: {again}"
    )


def _finish_renames(folder: Path) -> None:
    """Back in place what a kill caught between two names."""
    for replaced in folder.glob(".step-*.replaced"):
        name = re.fullmatch(r"\.(step-\d+)\.replaced", replaced.name)
        if name and not (folder / name[1]).exists():
            replaced.rename(folder / name[1])


def check_resumable(old: Config, new: Config) -> None:
    """Say which settings were changed. Raises ConfigError if one would make it another run."""
    before = {key: value for key, _, value in fields(old)}
    changes = {
        key: f"{key} ({as_flow(before[key])} to {as_flow(value)})"
        for key, _, value in fields(new)
        if value != before[key]
    }
    described = {"train.minutes", "train.max_steps", "train.plans"}  # by what training logs
    shown = {*SAFE_TO_CHANGE} - described
    if allowed := [change for key, change in changes.items() if key in shown]:
        log.info("changed: %s", ", ".join(allowed))
    if changed := [change for key, change in changes.items() if key not in SAFE_TO_CHANGE]:
        raise ConfigError(
            f"--resume continues the same run, so it cannot change {', '.join(changed)}; "
            f"start a new run, or change only {', '.join(SAFE_TO_CHANGE)}"
        )
