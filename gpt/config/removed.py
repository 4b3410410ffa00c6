"""Settings of older versions, and what happens to them in the config of a stored run."""

import logging
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from gpt.config.schema import Config
from gpt.errors import ConfigError

log = logging.getLogger(__name__)


class Removed(NamedTuple):
    """A setting that no longer exists.

    A stored run may have it at its `default`, or at any value if the run is useful without it.
    """

    default: Any
    advice: str
    is_optional: bool = False


_PENALTIES = "use sample.presence_penalty or sample.frequency_penalty (0: no effect)"
REMOVED = {
    "model.attention_dropout": Removed(0.0, "delete it, or use model.dropout"),
    "train.auto_batch": Removed(False, "delete it, and raise train.accumulation to save memory"),
    "train.decay": Removed("linear", "delete it: the decay is linear"),
    "train.distill_weight": Removed(0.7, "delete it: the weight is 0.7"),
    "train.freeze": Removed(0, "delete it: fine-tuning trains all weights"),
    "train.histograms": Removed(False, "delete it: TensorBoard gets no histograms", True),
    "train.parallel": Removed("ddp", "delete it: every process holds the whole model", True),
    "train.rewarm_steps": Removed(0, "delete it: a new schedule starts at once", True),
    "sample.context_after_overflow": Removed(None, "delete it: half of model.T is kept", True),
    "sample.repetition_penalty": Removed(1.0, f"delete it, or {_PENALTIES}", True),
}


def without_removed(tree: Any) -> Any:
    """Return the nested `tree` of a stored config without removed settings.

    Raises:
        ConfigError: the run needs one of them, at another value than its default.
    """
    for key, removed in REMOVED.items():
        section, _, name = key.partition(".")
        stored = tree.get(section) if isinstance(tree, dict) else None
        if not isinstance(stored, dict) or name not in stored:
            continue
        value = stored[name]
        tree = tree | {section: {k: v for k, v in stored.items() if k != name}}
        if value != removed.default and removed.is_optional:
            log.warning("%s, %s in this run, no longer has an effect", key, value)
        elif value != removed.default:
            raise ConfigError(
                f"this run was made by an older version with {key} {value}, which no longer "
                f"exists; use that version, or train again"
            )
    return tree


StoredConfig = Annotated[Config, BeforeValidator(without_removed)]
"""A config of a stored run or sweep, perhaps of an older version."""
