"""Settings of older versions, and what happens to them in the config of a stored run."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from gpt.config.schema import Config
from gpt.errors import ConfigError

ANY = object()
REMOVED = {  # the values that a stored run may have
    "model.attention_dropout": 0.0,
    "train.auto_batch": False,
    "train.decay": "linear",
    "train.distill_weight": 0.7,
    "train.freeze": 0,
    "train.histograms": ANY,
    "train.parallel": ANY,
    "train.rewarm_steps": ANY,
    "sample.context_after_overflow": ANY,
    "sample.repetition_penalty": ANY,
}


def without_removed(tree: Any) -> Any:
    """Return the nested `tree` of a stored config without removed settings.

    Raises:
        ConfigError: the run needs one of them, at another value than its default.
    """
    for key, expected in REMOVED.items():
        section, _, name = key.partition(".")
        stored = tree.get(section) if isinstance(tree, dict) else None
        if isinstance(stored, dict) and name in stored:
            if expected is not ANY and stored[name] != expected:
                raise ConfigError(
                    f"this run was made by an older version with {key} {stored[name]}, which no "
                    f"longer exists; use that version, or train again"
                )
            tree = tree | {section: {k: v for k, v in stored.items() if k != name}}
    return tree


StoredConfig = Annotated[Config, BeforeValidator(without_removed)]
"""A config of a stored run or sweep, perhaps of an older version."""
