"""The product of lists of values: what a sweep trains, and what each of its runs is called."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pydantic import ValidationError

from gpt.config.load import Override, assignment, typed_value
from gpt.config.mistakes import explain
from gpt.config.schema import SETTINGS, Config, explicit, values
from gpt.config.yaml import as_flow
from gpt.errors import ConfigError, UsageError, shown

MOST_RUNS = 1000
LONGEST_NAME = 60  # characters: it is to be read in a list, and typed


@dataclass(frozen=True)
class Combination:
    """Values of the keys that have several, as they were written, and all changes of the config."""

    values: dict[str, str]
    changes: list[Override]


def combinations(changes: Sequence[Override]) -> list[Combination]:
    """The product of all lists among the changes, `section.key=value` each, the last one fastest.

    A value is a list if the key does not take it as it stands, and it has commas or is one in YAML:
    `train.learning_rate=1e-3,2e-3` has two values, `data.include=["*.md", "*.txt"]` and a file
    named `a,b` are one.

    Raises:
        ConfigError: a list is empty, has no value between two commas, or has one twice.
        UsageError: there are more than MOST_RUNS.
    """
    several: dict[str, list[str]] = {}
    single: dict[str, Override] = {}
    for change in changes:
        key, value = assignment(change)
        values = _values(key, value, change)
        several.pop(key, None)
        single.pop(key, None)
        if values is None:
            single[key] = change
        else:
            several[key] = values
    _check_count(math.prod(map(len, several.values())))
    combined = [dict(zip(several, chosen, strict=True)) for chosen in product(*several.values())]
    return [
        Combination(values, [*single.values(), *(f"{k}={v}" for k, v in values.items())])
        for values in combined
    ]


def with_seeds(combined: Sequence[Combination], first: int, count: int | None) -> list[Combination]:
    """Each combination with each of so many seeds from the first on; None: as they are.

    Raises UsageError if seeds are combined already, or there are more than MOST_RUNS.
    """
    if count is None:
        return [*combined]
    if "seed" in combined[0].values:
        raise UsageError("expected either --seeds or several values of seed, got both")
    _check_count(len(combined) * count)
    return [
        Combination(each.values | {"seed": str(seed)}, [*each.changes, f"seed={seed}"])
        for each in combined
        for seed in range(first, first + count)
    ]


def names_of(combinations: Sequence[Combination]) -> list[str]:
    """A name for each, `learning_rate-1e-3,seed-1337`: what it differs by; no two have one."""
    names: list[str] = []
    for number, combination in enumerate(combinations, start=1):
        parts = (f"{key.rpartition('.')[2]}-{v}" for key, v in combination.values.items())
        plain = (re.sub(r"[^\w.+-]+", "-", part.replace('"', "")) for part in parts)
        name = ",".join(part.strip("-") for part in plain)
        names.append(name if len(name) <= LONGEST_NAME and name not in names else f"run-{number}")
    return names


def asked_settings(config: Config, *, is_open: bool) -> dict[str, Any]:
    """The settings that a command asks for, by key; where it leaves things open, those it sets.

    A value that is set differs from a default of the same value: that is not what is chosen.
    """
    return explicit(config) if is_open else values(config)


def check_different(asked: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises UsageError if two runs, by their names, have the same `asked_settings`."""
    names: dict[str, str] = {}
    for name, settings in asked.items():
        if (other := names.setdefault(repr(sorted(settings.items())), name)) != name:
            raise UsageError(
                f"expected runs that differ, got {other} and {name} with the same settings; "
                f"--minutes and --init-from take the place of train.minutes and train.init_from, "
                f"and null stands for a default"
            )


def _check_count(runs: int) -> None:
    if runs > MOST_RUNS:
        raise UsageError(f"expected at most {MOST_RUNS:,} runs, got {runs:,}")


def _values(key: str, value: Any, change: Override) -> list[str] | None:
    """Return the values of a list, as they can be typed; None if the key has one value."""
    if isinstance(value, list):
        takes_list = key in SETTINGS and tuple in SETTINGS[key].kinds
        if takes_list and not all(_takes(key, each) for each in value):
            return None  # a list that the key takes, with a mistake
        texts = [as_flow(each) for each in value]
    elif isinstance(change, str) and isinstance(value, str) and "," in value:
        texts = [each.strip() for each in value.split(",")]
    else:
        return None
    if _takes(key, value):
        return None
    origin = f"--set {key}={shown(', '.join(texts) or '[]')}"
    if not texts:
        raise ConfigError(f"{origin}: expected a value, or several, got an empty list")
    if not all(texts):
        raise ConfigError(f"{origin}: expected a value before and after each comma")
    meant = [typed_value(key, each) for each in texts]
    for i, each in enumerate(meant):
        if each in meant[:i]:
            raise ConfigError(f"{origin}: expected different values, got {each!r} twice")
    return texts


def _takes(key: str, value: Any) -> bool:
    """Return whether a key takes a value, whatever the others are."""
    tree = value
    for name in reversed(key.split(".")):
        tree = {name: tree}
    try:
        Config.model_validate(tree)
    except ValidationError as error:
        return not any(f"{at}.".startswith(f"{key}.") for at, _ in explain(error))
    return True
