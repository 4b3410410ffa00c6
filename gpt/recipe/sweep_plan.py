"""The plan of a sweep, stored in a file: one run for each combination of the varied settings."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PositiveInt,
    ValidationError,
    field_serializer,
)

from gpt.config.load import Override, assignment, typed_value
from gpt.config.mistakes import explain
from gpt.config.removed import upgraded
from gpt.config.schema import Config, explicit
from gpt.config.schema import values as all_values
from gpt.config.yaml import as_flow
from gpt.errors import ConfigError, UsageError, listed, shown
from gpt.files import read_bounded
from gpt.runs.find import SWEEP

MAX_PLAN_BYTES = 2**26  # largest size of the file
MAX_RUNS = 1000  # largest number of runs of a sweep
MAX_NAME_CHARACTERS = 60  # a longer name of a run is replaced by its number
MAX_SETTING_CHARACTERS = 8  # a longer name of a setting is abbreviated in the name of a run


@dataclass(frozen=True)
class Combination:
    """The overrides of one run, with one value of each setting that the sweep varies."""

    name: str  # name of the run's folder, such as `lr-1e-3,seed-1337`
    values: dict[str, str]  # value, as typed, of each setting that the sweep varies
    changes: list[Override]  # all overrides, also those that are the same in all runs


def combinations(changes: Sequence[Override]) -> list[Combination]:
    """Return all combinations of the values of the settings in `changes`. The last varies fastest.

    A setting has several values if its text has commas or is a YAML list, unless the setting
    accepts the whole text as one value. `train.learning_rate=1e-3,2e-3` has two values.
    `data.include=["*.md", "*.txt"]` and a file named `a,b` are single values.

    Raises:
        ConfigError: a list is empty, has no value between two commas, or has a value twice.
    """
    several: dict[str, list[str]] = {}
    single: dict[str, Override] = {}
    for change in changes:
        key, value = assignment(change)
        several.pop(key, None)
        single.pop(key, None)
        if values := _listed_values(key, value, change):
            several[key] = values
        else:
            single[key] = change
    check_count(math.prod(map(len, several.values())))
    combined: dict[str, Combination] = {}
    for chosen in product(*several.values()):
        values_by_key = dict(zip(several, chosen, strict=True))
        parts = (f"{_short_name(key)}-{value}" for key, value in values_by_key.items())
        plain = (re.sub(r"[^\w.+-]+", "-", part.replace('"', "")) for part in parts)
        name = ",".join(part.strip("-") for part in plain)
        if len(name) > MAX_NAME_CHARACTERS or name in combined:
            name = f"run-{len(combined) + 1}"
        overrides = [*single.values(), *(f"{k}={v}" for k, v in values_by_key.items())]
        combined[name] = Combination(name, values_by_key, overrides)
    return [*combined.values()]


def _short_name(key: str) -> str:
    """Return the name of a setting, or its initials if it is long: `lr` for `learning_rate`."""
    name = key.rpartition(".")[2]
    words = name.split("_")
    is_long = len(words) > 1 and len(name) > MAX_SETTING_CHARACTERS
    return "".join(word[0] for word in words) if is_long else name


def check_count(runs: int) -> None:
    """Raise UsageError if a sweep has too many runs."""
    if runs > MAX_RUNS:
        raise UsageError(f"expected at most {MAX_RUNS:,} runs, got {runs:,}")


def _listed_values(key: str, value: Any, change: Override) -> list[str] | None:
    """Return the values as typed if `change` sets `key` to several values, else None."""
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
            raise ConfigError(f"{origin}: expected different values, got {each!r} twice")
    return texts


def _accepts(key: str, value: Any) -> bool:
    """Return whether the setting `key` accepts `value`, regardless of other settings."""
    tree = value
    for name in reversed(key.split(".")):
        tree = {name: tree}
    try:
        Config.model_validate(tree)
    except ValidationError as error:
        return not any(f"{at}.".startswith(f"{key}.") for at, _ in explain(error))
    return True


StoredConfig = Annotated[Config, BeforeValidator(upgraded)]


class PlannedRun(BaseModel):
    """A run of a sweep, as stored in sweep.json."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)  # older plans have further keys
    name: str  # name of the run's folder
    values: dict[str, str]  # value, as typed, of each setting that the sweep varies
    asked: StoredConfig  # the config as the command gives it; settings may be unset
    is_open: bool = False  # whether gpt chooses the unset settings for the text and the time
    config: StoredConfig = Config()  # to train with, including what gpt has chosen
    text_sha256: str = ""  # hash of the text, to notice that it has changed

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by dotted key, without those that gpt chooses.

        They identify a run: `check_different` and `check_same` compare them.
        """
        return explicit(self.asked) if self.is_open else all_values(self.asked)

    @field_serializer("asked", "config")
    def _only_given(self, config: Config) -> dict[str, Any]:
        return config.model_dump(exclude_unset=True)


class SweepPlan(BaseModel):
    """All runs of a sweep, and the number of runs to train at once."""

    jobs: PositiveInt
    runs: list[PlannedRun]


def read_plan(folder: Path) -> SweepPlan:
    """Read the plan of the sweep in `folder`; raise UsageError if the file is not a plan."""
    path = folder / SWEEP
    try:
        return SweepPlan.model_validate_json(read_bounded(path, MAX_PLAN_BYTES))
    except (OSError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise UsageError(
            f"{path}: expected the plan of a sweep, got something else ({reason}); replace the "
            f"sweep by --overwrite, or choose another --run-dir"
        ) from None


def check_different(runs: Sequence[PlannedRun]) -> None:
    """Raise UsageError if two runs have the same settings."""
    names: dict[str, str] = {}
    for run in runs:
        if (other := names.setdefault(repr(sorted(run.settings.items())), run.name)) != run.name:
            raise UsageError(
                f"expected runs that differ, got {other} and {run.name} with the same settings; "
                f"--minutes and --init-from take the place of train.minutes and train.init_from, "
                f"and null stands for a default"
            )


def check_same(folder: Path, plan: SweepPlan, asked: Sequence[PlannedRun]) -> None:
    """Raise UsageError with the first difference if `plan` and `asked` have different runs."""
    before, now = ({run.name: run.settings for run in runs} for runs in (plan.runs, asked))
    if before == now:
        return
    if before.keys() != now.keys():
        problem = f"its runs are {listed([*before], 3)}, here they are {listed([*now], 3)}"
    else:
        name = next(name for name in now if before[name] != now[name])
        old, new = before[name], now[name]
        key = next(key for key in old | new if str(old.get(key)) != str(new.get(key)))
        was, is_now = (each.get(key, "left open") for each in (old, new))
        problem = f"its {key} is {was}, here it is {is_now}"
    raise UsageError(
        f"{folder} is another sweep: {problem}; resume that one by --resume {folder}, replace it "
        f"by --overwrite, or choose another --run-dir"
    )
