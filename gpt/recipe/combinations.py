"""Combine several values of settings: `--set train.learning_rate=1e-3,2e-3` stands for two runs."""

import math
import re
from collections.abc import Sequence
from itertools import product
from typing import Any

from gpt.config.load import Override, assignment, load_config, typed_value
from gpt.config.yaml import as_flow
from gpt.errors import ConfigError, UsageError, shown

MAX_RUNS = 1000  # largest number of runs of a sweep
MAX_RUN_NAME_CHARACTERS = 60  # a longer name of a run is replaced by its number
MAX_SETTING_CHARACTERS = 8  # a longer name of a setting is abbreviated in the name of a run


def combinations(changes: Sequence[Override]) -> dict[str, dict[str, str]]:
    """Return all combinations of the values of the settings in `changes`. The last varies fastest.

    A setting has several values if its text has commas or is a YAML list, unless the setting
    accepts the whole text as one value. `train.learning_rate=1e-3,2e-3` has two values.
    `data.include=["*.md", "*.txt"]` and a file named `a,b` are single values.

    Returns:
        For each combination, by a name such as `lr-1e-3,seed-1337`: the values, as typed, of the
        settings that have several values.

    Raises:
        ConfigError: a list is empty, has no value between two commas, or has a value twice.
    """
    several: dict[str, list[str]] = {}
    for change in changes:
        key, value = assignment(change)
        several.pop(key, None)  # the last change of a setting counts
        if values := _listed_values(key, value, change):
            several[key] = values
    check_count(math.prod(map(len, several.values())))
    combined: dict[str, dict[str, str]] = {}
    for chosen in product(*several.values()):
        values_by_key = dict(zip(several, chosen, strict=True))
        parts = (f"{_short_name(key)}-{value}" for key, value in values_by_key.items())
        plain = (re.sub(r"[^\w.+-]+", "-", part.replace('"', "")) for part in parts)
        name = ",".join(part.strip("-") for part in plain)
        if not name or len(name) > MAX_RUN_NAME_CHARACTERS or name in combined:
            name = f"run-{len(combined) + 1}"
        combined[name] = values_by_key
    return combined


def _short_name(key: str) -> str:
    """Return the name of a setting, or its initials if it is long: `lr` for `learning_rate`."""
    name = key.rpartition(".")[2]
    words = name.split("_")
    is_long = len(words) > 1 and len(name) > MAX_SETTING_CHARACTERS
    return "".join(word[0] for word in words) if is_long else name


def check_count(runs: int) -> None:
    """Raise UsageError if a sweep has too many runs."""
    if runs > MAX_RUNS:
        raise UsageError(f"expected at most {MAX_RUNS:,} runs, got {runs:,}; give fewer values")


def _listed_values(key: str, value: Any, change: Override) -> list[str] | None:
    """If `change` gives `key` several values, return them as the user wrote them, else None."""
    if isinstance(value, list):
        if value and all(isinstance(each, list) and not _accepts(key, each) for each in value):
            return None
        texts = [as_flow(each) for each in value]
    elif isinstance(change, str) and isinstance(value, str) and "," in value:
        texts = [each.strip() for each in value.split(",")]
    else:
        return None
    if _accepts(key, value):
        return None
    origin = f"--set {key}={shown(', '.join(texts) or '[]')}"
    if not texts or not all(texts):
        raise ConfigError(f"{origin}: expected a value before and after each comma, got none")
    parsed = [typed_value(key, each) for each in texts]
    for i, each in enumerate(parsed):
        if each in parsed[:i]:
            raise ConfigError(f"{origin}: expected distinct values, got {each!r} twice")
    return texts


def _accepts(key: str, value: Any) -> bool:
    """Return whether the setting `key` accepts `value`, if all others have their defaults."""
    try:
        load_config(None, [(key, value)])
    except ConfigError:
        return False
    return True
