"""The runs of a sweep: all combinations of lists of values, and their names."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pydantic import ValidationError

from gpt.config.load import Override, assignment, typed_value
from gpt.config.mistakes import explain
from gpt.config.schema import SETTINGS, Config, explicit
from gpt.config.schema import values as all_values
from gpt.config.yaml import as_flow
from gpt.errors import ConfigError, UsageError, shown

MAX_RUNS = 1000
MAX_NAME_CHARACTERS = 60  # a longer name of a run is replaced by its number


@dataclass(frozen=True)
class Combination:
    """The values, as typed, of the settings that differ between runs, and all overrides."""

    values: dict[str, str]
    changes: list[Override]


@dataclass(frozen=True)
class AskedRun:
    """A run that a command asks for.

    Attributes:
        name: the name of its folder.
        values: the values of the settings that differ between runs, as typed.
        config: its config.
        is_open: settings that are not set are chosen for the text and time.
    """

    name: str
    values: dict[str, str]
    config: Config
    is_open: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that identify the run, by key: if it is open, only those that are set."""
        return explicit(self.config) if self.is_open else all_values(self.config)


def combinations(changes: Sequence[Override]) -> list[Combination]:
    """Return the product of all lists of values among `changes`; the last one varies fastest.

    A value is a list if the setting does not take it as it is, and it contains commas or is a list
    in YAML. `train.learning_rate=1e-3,2e-3` has two values. `data.include=["*.md", "*.txt"]` and a
    file named `a,b` are one value.

    Raises:
        ConfigError: a list is empty, has no value between two commas, or has one twice.
        UsageError: there are more than MAX_RUNS combinations.
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
    """Return each combination with each of `count` seeds.

    Args:
        combined: the combinations.
        first: the first seed.
        count: the number of seeds; None: leave the combinations as they are.

    Raises:
        UsageError: seeds are combined already, or there are more than MAX_RUNS runs.
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
    """Return a unique name for each combination, such as `learning_rate-1e-3,seed-1337`."""
    names: list[str] = []
    for number, combination in enumerate(combinations, start=1):
        parts = (f"{key.rpartition('.')[2]}-{v}" for key, v in combination.values.items())
        plain = (re.sub(r"[^\w.+-]+", "-", part.replace('"', "")) for part in parts)
        name = ",".join(part.strip("-") for part in plain)
        is_usable = len(name) <= MAX_NAME_CHARACTERS and name not in names
        names.append(name if is_usable else f"run-{number}")
    return names


def check_different(asked: Sequence[AskedRun]) -> None:
    """Raise UsageError if two runs have the same settings."""
    names: dict[str, str] = {}
    for run in asked:
        if (other := names.setdefault(repr(sorted(run.settings.items())), run.name)) != run.name:
            raise UsageError(
                f"expected runs that differ, got {other} and {run.name} with the same settings; "
                f"--minutes and --init-from take the place of train.minutes and train.init_from, "
                f"and null stands for a default"
            )


def _check_count(runs: int) -> None:
    if runs > MAX_RUNS:
        raise UsageError(f"expected at most {MAX_RUNS:,} runs, got {runs:,}")


def _values(key: str, value: Any, change: Override) -> list[str] | None:
    """Return the values of a list, as they can be typed; None if `value` is a single value."""
    if isinstance(value, list):
        takes_list = key in SETTINGS and tuple in SETTINGS[key].kinds
        if takes_list and not all(_takes(key, each) for each in value):
            return None  # a list for a setting that takes lists, with a mistake
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
    parsed = [typed_value(key, each) for each in texts]
    for i, each in enumerate(parsed):
        if each in parsed[:i]:
            raise ConfigError(f"{origin}: expected different values, got {each!r} twice")
    return texts


def _takes(key: str, value: Any) -> bool:
    """Return whether a setting takes `value`, whatever the other settings are."""
    tree = value
    for name in reversed(key.split(".")):
        tree = {name: tree}
    try:
        Config.model_validate(tree)
    except ValidationError as error:
        return not any(f"{at}.".startswith(f"{key}.") for at, _ in explain(error))
    return True
