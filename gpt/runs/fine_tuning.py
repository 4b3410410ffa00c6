"""Fine-tune the model of a run: settings that the new run inherits, and those that it must keep."""

import logging
from typing import Any

from gpt.config.schema import SETTINGS, Config, values
from gpt.config.yaml import differences
from gpt.errors import ConfigError, setting_arguments
from gpt.runs.format import CheckpointData

log = logging.getLogger(__name__)

# ratio of the learning rate of fine-tuning to that of the original run (scripts/experiments.md)
RATE_FACTOR = 0.5


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
