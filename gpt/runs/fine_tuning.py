"""A run to fine-tune: which of its settings the new run begins with, and what that may change."""

import logging
from typing import TYPE_CHECKING, Any

from gpt.config.schema import Config, fields
from gpt.errors import ConfigError

if TYPE_CHECKING:
    from gpt.runs.checkpoint import CheckpointData

log = logging.getLogger(__name__)

READ_ALIKE = {"newlines", "normalize", "lowercase"}
TRAINED_ALIKE = {
    *("steps", "batch_size", "first_window", "accumulation"),
    *("optimizer", "weight_decay", "beta1", "beta2", "grad_clip", "decay"),
}
RATES = ("muon_learning_rate", "learning_rate", "min_learning_rate")
RATE_FACTOR = 0.5  # trained weights have less to learn (scripts/experiments.md)
FREE_OF_WEIGHTS = ("model.T", "model.dropout", "model.attention_dropout", "model.character_dropout")


def settings_to_inherit(data: "CheckpointData") -> dict[str, Any]:
    """The settings that take the place of the defaults where this model is fine-tuned.

    Its shape, how its text was read, and the steps, batches and optimizer that trained it, at
    lower learning rates. (Not lower still where it was fine-tuned itself.)
    """
    train = data.config.train
    factor = RATE_FACTOR if train.init_from is None else 1.0
    return {
        "data": data.config.data.model_dump(include=READ_ALIKE)
        | {"vocabulary": "bytes" if data.vocabulary.is_bytes else "characters"},
        "model": data.config.model.model_dump(),
        "train": train.model_dump(include=TRAINED_ALIKE)
        | {rate: factor * getattr(train, rate) for rate in RATES},
    }


def check_same_model(data: "CheckpointData", config: Config) -> None:
    """Raises ConfigError where a config says of the model to fine-tune what it is not."""
    run, expected = config.train.init_from, "bytes" if data.vocabulary.is_bytes else "characters"
    if config.data.vocabulary != expected:
        raise ConfigError(
            f"data.vocabulary: expected {expected}, which {run} was trained on, got "
            f"{config.data.vocabulary}; leave it out"
        )
    before = {key: value for key, _, value in fields(data.config)}
    changed = [
        f"{key} ({before[key]} to {value})"
        for key, _, value in fields(config)
        if key.startswith("model.") and key not in FREE_OF_WEIGHTS and value != before[key]
    ]
    if changed:
        raise ConfigError(
            f"train.init_from: the model is that of {run}, so a config cannot change "
            f"{', '.join(changed)}; leave that out, or start with new weights. Of the model, "
            f"{', '.join(FREE_OF_WEIGHTS)} may change"
        )
    longest = before["model.T"]
    if config.model.positions == "learned" and longest < config.model.T:
        raise ConfigError(
            f"model.T: expected at most {longest}, as {run} learned a position embedding for each "
            f"of so many characters, got {config.model.T}"
        )


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
