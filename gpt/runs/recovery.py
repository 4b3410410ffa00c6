"""Read the newest intact checkpoint of a run to resume, also after a crash or a disk error."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpt.config.load import load_config
from gpt.config.schema import Config, values
from gpt.config.yaml import differences
from gpt.errors import CheckpointError, ConfigError, arguments
from gpt.files import from_here
from gpt.runs.format import STEP_NAME, CheckpointData, TrainingState, step_folder, steps_in
from gpt.runs.lock import locked
from gpt.runs.read import read_summary, read_to_resume
from gpt.runs.write import write_index

log = logging.getLogger(__name__)

Read = TypeVar("Read")


def recover(run: Path) -> tuple[CheckpointData, TrainingState]:
    """Read the newest intact checkpoint of a run, and make it `last` in the index.

    Newer checkpoints, which are damaged, are renamed to `damaged-step-N`, and a warning is logged.
    If no checkpoint is intact, raise CheckpointError. If another version of gpt wrote the newest
    one, raise Unreadable, and change nothing.
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
    except (OSError, ConfigError):  # the file is missing or wrong
        return
    if config.train.plans:  # training changes these settings after it has written config.yaml
        for key in ("train.plans", "train.steps", "train.minutes"):
            edited.pop(key)
    if changes := differences(values(config), edited):
        log.warning(
            "ignored your edits of %s/config.yaml: %s; a resume takes its settings from the "
            "checkpoint and from its own arguments",
            from_here(run),
            ", ".join(changes.values()),
        )


def summary_to_resume(run: Path) -> CheckpointData:
    """Read all but the tensors of the newest checkpoint whose JSON files are intact."""
    with locked(run):
        return _newest_intact(run, read_summary)[0]


def _newest_intact(
    run: Path, read: Callable[[Path, int], Read]
) -> tuple[Read, dict[int, CheckpointError]]:
    """Return `read(run, step)` of the newest intact checkpoint, and errors of newer ones by step.

    Before that, restore a checkpoint if a kill interrupted its replacement.
    """
    folder = run / "checkpoints"
    for step in steps_in(folder, rf"\.{STEP_NAME}\.replaced"):  # left by a process that was killed
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
        f"{shown / 'checkpoints'} from a backup, or train the run again by "
        f"{arguments(overwrite=True)}"
    )
