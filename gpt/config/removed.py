"""Settings of older versions, and what happens to them in the config of a stored run."""

from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from gpt.config.schema import Config
from gpt.errors import ConfigError


class Removed(NamedTuple):
    """A setting that no longer exists: its default, and what to do without it."""

    default: Any
    advice: str


REMOVED = {
    "sample.repetition_penalty": Removed(
        1.0,
        "delete it, or use sample.presence_penalty or sample.frequency_penalty, which are "
        "subtracted from logits (0: no effect)",
    ),
}


def without_removed(tree: Any) -> tuple[Any, list[str]]:
    """Return the nested `tree` of a stored config without removed settings.

    Raises:
        ConfigError: one of them, which the model depends on, was not left at its default.

    Returns:
        The tree, and a notice for each setting of sampling that was not left at its default: a
        model can be used without them.
    """
    notices = []
    for key, (default, advice) in REMOVED.items():
        section, _, name = key.partition(".")
        stored = tree.get(section) if isinstance(tree, dict) else None
        if not isinstance(stored, dict) or name not in stored:
            continue
        tree = tree | {section: {k: v for k, v in stored.items() if k != name}}
        value = stored[name]
        if value == default:
            continue
        if section != "sample":
            raise ConfigError(
                f"the run was made by an older version with {key} {value}, which no longer "
                f"exists; use that version, or train again ({advice})"
            )
        notices.append(f"{key}, {value} in this run, no longer has an effect; {advice}")
    return tree, notices


StoredConfig = Annotated[Config, BeforeValidator(lambda tree: without_removed(tree)[0])]
