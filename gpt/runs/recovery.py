"""Resume a run after a crash or a disk error, and check what a resume may change."""

import logging
import re
import shutil
from pathlib import Path

from gpt.config.schema import SETTINGS, Config, values
from gpt.config.yaml import as_flow
from gpt.errors import CheckpointError, ConfigError, command
from gpt.runs.format import CheckpointData, TrainingState, step_folder, steps_in
from gpt.runs.lock import locked
from gpt.runs.read import read_summary, read_to_resume
from gpt.runs.write import write_index

log = logging.getLogger(__name__)


def recover(run: Path) -> tuple[CheckpointData, TrainingState]:
    """Read the newest intact checkpoint of a run, and make it `last`.

    Newer checkpoints, which are damaged, are renamed, with a warning.

    Raises:
        CheckpointError: none is intact; the message says what is wrong with the newest.
        Unreadable: one cannot be read now, so it is unknown whether it is damaged. Nothing changed.
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
    """Read the newest checkpoint with a readable config, without its weights.

    Raises:
        CheckpointError: there is none; the message says what is wrong with the newest.
        UsageError: another process is writing the run.
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
    """Return the error for a run without an intact checkpoint."""
    folder = run / "checkpoints"
    if not damaged:
        return CheckpointError(f"{folder}: no checkpoint")
    step, error = next(iter(damaged.items()))
    if error.__cause__ is None:  # of an older version: the message says all
        return error
    reason = " ".join(str(error.__cause__).split())
    config = str(run / "config.yaml")
    again = command("train", "--config", config, "--run-dir", str(run), "--overwrite")
    return CheckpointError(
        f"{run} cannot be resumed: none of its checkpoints is intact; step-{step} is damaged "
        f"({reason:.300}). Copy {folder} from a backup, or train the run again: {again}"
    )


def _finish_renames(folder: Path) -> None:
    """Restore a checkpoint that a kill left between the two renames of `write_checkpoint`."""
    for replaced in folder.glob(".step-*.replaced"):
        name = re.fullmatch(r"\.(step-\d+)\.replaced", replaced.name)
        if name and not (folder / name[1]).exists():
            replaced.rename(folder / name[1])


def check_resumable(old: Config, new: Config) -> None:
    """Log which settings a resume changes; raise ConfigError if it may not change one of them."""
    before = values(old)
    changes = {
        key: f"{key} ({as_flow(before[key])} to {as_flow(value)})"
        for key, value in values(new).items()
        if value != before[key]
    }
    allowed = [key for key, setting in SETTINGS.items() if setting.resumable]
    planned = ("train.minutes", "train.max_steps", "train.plans")  # training logs the new plan
    logged = [change for key, change in changes.items() if key in allowed and key not in planned]
    if logged:
        log.info("changed: %s", ", ".join(logged))
    if refused := [change for key, change in changes.items() if key not in allowed]:
        raise ConfigError(
            f"--resume continues the same run, so it cannot change {', '.join(refused)}; start a "
            f"new run, or change only {', '.join(allowed)}"
        )
