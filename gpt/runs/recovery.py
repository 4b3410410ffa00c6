"""Resume a run after a crash or a disk error, and check what a resume may change."""

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpt.config.load import load_config
from gpt.config.schema import SETTINGS, Config, values
from gpt.config.yaml import as_flow
from gpt.errors import CheckpointError, ConfigError
from gpt.files import from_here
from gpt.runs.format import CheckpointData, TrainingState, step_folder, steps_in
from gpt.runs.lock import locked
from gpt.runs.read import read_summary, read_to_resume
from gpt.runs.write import write_index

log = logging.getLogger(__name__)

Read = TypeVar("Read")


def recover(run: Path) -> tuple[CheckpointData, TrainingState]:
    """Read the newest intact checkpoint of a run, and make it `last` in the index.

    Damaged checkpoints that are newer are renamed to `damaged-step-N`, and a warning is logged. If
    none is intact, raise CheckpointError.
    """
    folder = run / "checkpoints"
    (data, state), damaged = _newest_intact(run, read_to_resume)
    for step, reason in damaged.items():
        aside = folder / f"damaged-step-{step}"
        log.warning("%s; renamed to %s; resuming from step %d", reason, aside.name, data.step)
        shutil.rmtree(aside, ignore_errors=True)
        step_folder(folder, step).rename(aside)
    write_index(folder, data)
    _warn_of_edits(run, data.config)
    return data, state


def _warn_of_edits(run: Path, config: Config) -> None:
    """Log a warning if config.yaml, which a resume replaces, differs from `config`."""
    try:
        edited = values(load_config(run / "config.yaml"))
    except (OSError, ConfigError):  # the file is missing, or of an old version
        return
    if config.train.plans:  # these settings change after config.yaml is written
        for key in ("train.plans", "train.steps", "train.minutes"):
            edited.pop(key)
    if changes := differences(values(config), edited):
        log.warning(
            "ignored your edits of %s/config.yaml: %s; a resume takes the settings from the "
            "checkpoint, so set them when you resume",
            from_here(run),
            ", ".join(changes.values()),
        )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Describe the values in `new` that differ from those in `old`, by key."""
    return {
        key: f"{key} ({as_flow(old[key])} to {as_flow(value)})"
        for key, value in new.items()
        if value != old[key]
    }


def summary_to_resume(run: Path) -> CheckpointData:
    """Read the newest checkpoint whose JSON files are intact, without its tensors."""
    with locked(run):
        return _newest_intact(run, read_summary)[0]


def _newest_intact(
    run: Path, read: Callable[[Path, int], Read]
) -> tuple[Read, dict[int, CheckpointError]]:
    """Return `read(run, step)` for the newest checkpoint that is not damaged.

    Also return the errors of the newer, damaged checkpoints by step. First undo a replacement of a
    checkpoint that a kill interrupted.
    """
    folder = run / "checkpoints"
    for step in steps_in(folder, r"\.step-(\d+)\.replaced"):  # left by a kill in `write_checkpoint`
        place = step_folder(folder, step)
        if not place.exists():
            place.with_name(f".step-{step}.replaced").rename(place)
    damaged = dict[int, CheckpointError]()
    for step in reversed(steps_in(folder)):
        try:
            return read(run, step), damaged
        except CheckpointError as error:
            damaged[step] = error
    if not damaged:
        raise CheckpointError(f"{folder}: no checkpoint")
    shown = from_here(run)
    newest = next(iter(damaged.values()))
    raise CheckpointError(
        f"{shown} cannot be resumed: none of its checkpoints is intact. {newest}. Copy "
        f"{shown / 'checkpoints'} from a backup, or train the run again by --overwrite"
    )


def check_resumable(old: Config, new: Config) -> None:
    """Log which settings a resume changes; raise ConfigError for one that it cannot change."""
    changes = differences(values(old), values(new))
    resumable = {key: change for key, change in changes.items() if SETTINGS[key].resumable}
    resumable.pop("train.plans", None)  # it follows from train.steps or train.minutes
    refused = [change for key, change in changes.items() if not SETTINGS[key].resumable]
    if resumable:
        log.info("changed: %s", ", ".join(resumable.values()))
    if refused:
        raise ConfigError(
            f"a resume continues the same run, so it cannot change {', '.join(refused)}; leave "
            f"that out, or start a new run"
        )
