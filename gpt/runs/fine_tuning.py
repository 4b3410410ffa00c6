"""A run to fine-tune: which of its settings the new run begins with, and what that may change."""

from typing import TYPE_CHECKING, Any

from gpt.config.schema import Config, fields
from gpt.errors import ConfigError

if TYPE_CHECKING:
    from gpt.runs.checkpoint import CheckpointData

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
