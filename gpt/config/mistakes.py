"""Explain mistakes in a config, and find the setting that was meant."""

import difflib
import reprlib
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from gpt.config.removed import REMOVED
from gpt.config.schema import SETTINGS, Config
from gpt.errors import command, shown

MAX_LISTED_KEYS = 20  # keys of a section that a message lists
MAX_COMPARED_KEY = 100  # characters of an unknown key that are compared with known ones


def mistakes_in(error: ValidationError) -> list[Any]:
    """Return the mistakes that pydantic found, without those that follow from others."""
    found = error.errors(include_url=False)
    return [each for each in found if each["type"] != "default_factory_not_called"]


def explain(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the message of each mistake that pydantic found in a config."""
    for mistake in mistakes_in(error):
        key = ".".join(map(str, mistake["loc"]))
        yield key, _message(shown(key), mistake)


def _message(key: str, mistake: Any) -> str:
    """Return the message for one of pydantic's mistakes: what was expected and what was found."""
    kind, got = mistake["type"], reprlib.repr(mistake["input"])
    if kind == "extra_forbidden":
        return _message_for_unknown(key, mistake["loc"])
    if kind == "value_error":
        reason = str(mistake["ctx"]["error"])
        is_cross_field = isinstance(mistake["input"], dict) and reason.startswith(key)
        return reason if is_cross_field else f"{key}: {reason}, got {got}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{key}: expected keys below `{key}:`, got {got}"
    if kind == "string_too_short":
        return f"{key}: expected a text that is not empty, got {got}"
    return f"{key}: {mistake['msg'].replace('Input should be', 'expected')}, got {got}"


def _message_for_unknown(key: str, location: tuple[str | int, ...]) -> str:
    """Return the message for an unknown `key`, whose parts are in `location`."""
    if any("." in str(name) for name in location):
        *sections, name = key.split(".")
        nested = f"{''.join(f'{each}: {{' for each in sections)}{name}: ...{'}' * len(sections)}"
        return f"{key}: expected nested keys, `{nested}`, got one with a dot"
    if key in REMOVED:
        return f"{key}: no longer exists; {REMOVED[key].advice}"
    if near := nearest_setting(key):
        return f"{key}: unknown key; did you mean {near}?"
    section = key.rpartition(".")[0]
    keys = [each for each in SETTINGS if section and each.startswith(f"{section}.")]
    keys = keys or [*Config.model_fields]
    if len(keys) > MAX_LISTED_KEYS:
        return f"{key}: unknown key; {command('train', '--help-all')} lists the keys"
    return f"{key}: unknown key; the keys are {', '.join(keys)}"


def nearest_setting(name: str, cutoff: float = 0.6) -> str | None:
    """Return the key that is most similar to `name`; None if no key is similar.

    Args:
        name: a key, with or without a section. Names in other projects are recognised: `n_embd` and
            `train.n_embd` are model.C.
        cutoff: smallest similarity, see `difflib.get_close_matches`.
    """
    by_leaf = {key.rpartition(".")[2]: key for key in SETTINGS}
    by_leaf |= {section: section for section in Config.model_fields}
    name = name[:MAX_COMPARED_KEY].replace("-", "_")
    leaf = name.rpartition(".")[2]
    if leaf in by_leaf:
        return by_leaf[leaf]
    for setting in SETTINGS.values():
        if leaf.lower() in setting.aliases.split():
            return setting.key
    if near := difflib.get_close_matches(name, SETTINGS, n=1, cutoff=max(cutoff, 0.75)):
        return near[0]
    near = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=cutoff)
    return by_leaf[near[0]] if near else None
