"""A run to fine-tune: which of its settings the new run begins with, and what that may change."""

import logging
from typing import TYPE_CHECKING, Any

from gpt.config.schema import SETTINGS, Config, values
from gpt.errors import ConfigError

if TYPE_CHECKING:
    from gpt.runs.checkpoint import CheckpointData

log = logging.getLogger(__name__)

RATE_FACTOR = 0.5  # learning rates in fine-tuning / those of the run (scripts/experiments.md)


def settings_to_inherit(data: "CheckpointData") -> dict[str, Any]:
    """Return the tree of settings that a run fine-tuning this model has in place of the defaults.

    They are its shape, how its text was read, and the steps, batches and optimizer that trained it,
    with lower learning rates. The rates of a run that was fine-tuned itself are low already.
    """
    factor = RATE_FACTOR if data.config.train.init_from is None else 1.0
    tree: dict[str, Any] = {"data": {"vocabulary": _kind_of_vocabulary(data)}}
    for key, value in values(data.config).items():
        fine_tuning = SETTINGS[key].fine_tuning
        if fine_tuning != "new":
            section, name = key.split(".")
            tree.setdefault(section, {})[name] = (
                factor * value if fine_tuning == "scaled" else value
            )
    return tree


def check_same_model(data: "CheckpointData", config: Config) -> None:
    """Raise ConfigError if `config` does not fit the model in `data`, which it fine-tunes."""
    run, expected = config.train.init_from, _kind_of_vocabulary(data)
    if config.data.vocabulary != expected:
        raise ConfigError(
            f"data.vocabulary: expected {expected}, which {run} was trained on, got "
            f"{config.data.vocabulary}; leave it out"
        )
    before = values(data.config)
    changed = [
        f"{key} ({before[key]} to {value})"
        for key, value in values(config).items()
        if SETTINGS[key].fine_tuning == "fixed" and value != before[key]
    ]
    if changed:
        raise ConfigError(
            f"train.init_from: the model is that of {run}, so a config cannot change "
            f"{', '.join(changed)}; leave that out, or start with new weights"
        )
    longest = data.config.model.T
    if config.model.positions == "learned" and longest < config.model.T:
        raise ConfigError(
            f"model.T: expected at most {longest}, as {run} learned that many position "
            f"embeddings, got {config.model.T}"
        )


def _kind_of_vocabulary(data: "CheckpointData") -> str:
    return "bytes" if data.vocabulary.is_bytes else "characters"


def warn_of_known_val(key: str, old: Config, new: Config) -> None:
    """Warn if the run that this key names trained on what is val now, of a text of that name."""
    before, now = _split(old), _split(new)
    smaller_tail = before.keys() == now.keys() == {"data.split", "data.val_fraction"} and (
        before["data.val_fraction"] >= now["data.val_fraction"]
    )
    own_val = new.data.val_source is not None
    if old.data.source == new.data.source and not (own_val or before == now or smaller_tail):
        log.warning(
            "%s: that run trained on a part of what is val here, so val losses will be too low; "
            "to split the text as it did: --set %s",
            *(key, " --set ".join(f"{key}={value}" for key, value in before.items())),
        )


def _split(config: Config) -> dict[str, Any]:
    """The settings that say which part of a text is val."""
    data = config.data
    if data.val_source is not None:
        return {"data.val_source": data.val_source}
    of_documents = (
        {"data.documents": data.documents, "seed": config.seed} if data.split == "documents" else {}
    )
    return {"data.split": data.split, "data.val_fraction": data.val_fraction} | of_documents
