"""Continue a run: resume it, also after a crash or a disk error; or fine-tune its model.

A resume or a fine-tuning may change only some settings; this module checks them.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpt.config.load import load_config
from gpt.config.schema import SETTINGS, Config, values
from gpt.config.yaml import as_flow
from gpt.errors import CheckpointError, ConfigError, arguments, setting_arguments
from gpt.files import from_here
from gpt.runs.format import STEP_NAME, CheckpointData, TrainingState, step_folder, steps_in
from gpt.runs.lock import locked
from gpt.runs.read import read_summary, read_to_resume
from gpt.runs.write import write_index

log = logging.getLogger(__name__)

Read = TypeVar("Read")

# ratio of the learning rate of fine-tuning to that of the original run (scripts/experiments.md)
RATE_FACTOR = 0.5


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


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Describe the values in `new` that differ from those in `old`, by key."""
    return {
        key: f"{key} ({as_flow(old[key])} to {as_flow(value)})"
        for key, value in new.items()
        if value != old[key]
    }


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


def check_resumable(old: Config, new: Config) -> None:
    """Log which settings a resume changes; raise ConfigError if one must not change."""
    changes = differences(values(old), values(new))
    resumable = {key: change for key, change in changes.items() if SETTINGS[key].resumable}
    resumable.pop("train.plans", None)  # plans follow from train.steps or train.minutes
    refused = [change for key, change in changes.items() if not SETTINGS[key].resumable]
    if resumable:
        log.info("changed: %s", ", ".join(resumable.values()))
    if refused:
        raise ConfigError(
            f"a resume continues the same run, so it cannot change {', '.join(refused)}; keep "
            f"the old values, or start a new run"
        )


def settings_to_inherit(data: CheckpointData) -> dict[str, Any]:
    """Return default settings, by dotted key, for a run that fine-tunes the model in `data`."""
    # if the original run was itself fine-tuned, its rates are low already
    factor = RATE_FACTOR if data.config.train.init_from is None else 1.0
    inherited: dict[str, Any] = {"data.vocabulary": _vocabulary_of(data)}
    for key, value in values(data.config).items():
        fine_tuning = SETTINGS[key].fine_tuning
        if fine_tuning != "new":
            inherited[key] = factor * value if fine_tuning == "scaled" else value
    return inherited


def check_same_model(data: CheckpointData, config: Config) -> None:
    """Raise ConfigError if `config` changes the shape or vocabulary of the model in `data`."""
    run = config.train.init_from
    before = values(data.config) | {"data.vocabulary": _vocabulary_of(data)}
    changed = [
        change
        for key, change in differences(before, values(config)).items()
        if SETTINGS[key].fine_tuning == "fixed" or key == "data.vocabulary"
    ]
    if changed:
        raise ConfigError(
            f"train.init_from: the model is that of {run}, so a config cannot change "
            f"{', '.join(changed)}; keep the old values, or start with new weights"
        )
    learned, wanted = before["model.T"], config.model.T
    if config.model.positions == "learned" and learned < wanted:
        raise ConfigError(
            f"model.T: expected at most {learned}, the number of position embeddings in {run}, "
            f"got {wanted}"
        )


def _vocabulary_of(data: CheckpointData) -> str:
    return "bytes" if data.vocabulary.is_bytes else "characters"


def warn_of_known_val(old: Config, new: Config) -> None:
    """Warn if the original run may have been trained on text of the new run's val split.

    `old` is the config of the original run, and `new` that of the run that fine-tunes it.
    """
    before, now = values(old), values(new)
    keys = ["data.split", "data.val_fraction", "data.val_source", "data.documents"]
    keys += ["seed"] if new.data.split == "documents" else []  # the seed selects val's documents
    split = [f"{key}={before[key]}" for key in keys if before[key] != now[key]]
    is_smaller = before["data.val_fraction"] > now["data.val_fraction"]
    if len(split) == 1 and is_smaller and new.data.split == "tail":
        return  # the new val split is a part of the original run's val split
    if split and old.data.source == new.data.source and new.data.val_source is None:
        log.warning(
            f"train.init_from: {new.train.init_from} may have been trained on text of the new "
            f"run's val split, so val losses may be too low; to keep the old val split, add "
            f"{setting_arguments(*split)}"
        )
