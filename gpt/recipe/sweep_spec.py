"""The specification of a sweep: one trial for each combination of the varied settings.

`--set train.learning_rate=1e-3,2e-3` varies a setting: it stands for two runs.
"""

import math
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
)

from gpt.config.load import Override, assignment, load_config
from gpt.config.mistakes import explain
from gpt.config.schema import Config, explicit
from gpt.config.schema import values as all_values
from gpt.config.yaml import as_flow
from gpt.errors import ConfigError, UsageError, arguments, setting_arguments, shown
from gpt.files import read_bounded, write_atomically
from gpt.runs.folder import MAX_SWEEP_BYTES, SWEEP

MAX_RUNS = 1000  # largest number of runs of a sweep
MAX_RUN_NAME_CHARACTERS = 60  # a longer name of a run is replaced by its number
MAX_SETTING_CHARACTERS = 8  # a longer name of a setting is abbreviated in the name of a run


def _run_name(name: str) -> str:
    if name in ("", "..") or Path(name).name != name or not name.isprintable():
        raise ValueError(f"expected the name of a folder, got {name!r:.100}")
    return name


class Trial(BaseModel):
    """A run of a sweep, as stored in sweep.json."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    name: Annotated[str, AfterValidator(_run_name)]  # name of the run's folder
    values: dict[str, str]  # value, as typed, of each setting that the sweep varies
    asked: Config  # the config that the user gave; settings can be unset
    is_open: bool = False  # whether gpt chooses unset settings to suit the text and the time
    config: Config = Config()  # config to train with, including what gpt has chosen
    text_sha256: str = ""  # hash of the text, to detect changes

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by dotted key: if gpt chooses the others, only those that the user gave."""
        return explicit(self.asked) if self.is_open else all_values(self.asked)

    @field_serializer("asked", "config")
    def _only_given(self, config: Config) -> dict[str, Any]:
        return config.model_dump(exclude_unset=True)


class SweepSpec(BaseModel):
    """All trials of a sweep: the content of sweep.json."""

    runs: Annotated[list[Trial], Field(min_length=1)]


def write_spec(folder: Path, spec: SweepSpec) -> None:
    """Write the sweep.json of a new sweep."""
    write_atomically(folder / SWEEP, [spec.model_dump_json(indent=1).encode()])


def read_spec(folder: Path) -> SweepSpec:
    """Read the sweep.json in `folder`; raise UsageError if it does not specify a sweep."""
    path = folder / SWEEP
    try:
        return SweepSpec.model_validate_json(read_bounded(path, MAX_SWEEP_BYTES))
    except (OSError, ValidationError) as error:
        reason = next(explain(error))[1] if isinstance(error, ValidationError) else error
        raise UsageError(
            f"{path}: expected the specification of a sweep, but the file is not valid ({reason}); "
            f"restore the file, or choose another {arguments('run_dir')}"
        ) from None


def check_different(trials: Sequence[Trial]) -> None:
    """Raise UsageError if two trials have the same settings."""
    names: dict[str, str] = {}
    for trial in trials:
        first = names.setdefault(repr(sorted(trial.settings.items())), trial.name)
        if first != trial.name:
            raise UsageError(
                f"expected runs that differ, but {first} and {trial.name} have the same settings; "
                f"leave one of the two runs out. null stands for the default value, and "
                f"{arguments('minutes')} and {arguments('init_from')} override train.minutes and "
                f"train.init_from"
            )


def check_same(folder: Path, spec: SweepSpec, asked: Sequence[Trial]) -> None:
    """Raise UsageError if `asked` are not the trials of `spec`."""
    before, now = ({each.name: each.settings for each in trials} for trials in (spec.runs, asked))
    if before != now:
        raise UsageError(
            f"{folder} holds a sweep with other runs or settings than those of this command; "
            f"give its settings to resume it, or choose another {arguments('run_dir')}"
        )


def combinations(changes: Sequence[Override]) -> dict[str, dict[str, str]]:
    """Return all combinations of the values in `changes`; the last setting varies fastest.

    A setting has several values if its text has commas or is a YAML list, unless the setting
    accepts the whole text as one value. `train.learning_rate=1e-3,2e-3` has two values.
    `data.include=["*.md", "*.txt"]` and a file named `a,b` are single values.

    Returns:
        The combinations by name, such as `lr-1e-3,seed-1337`. Each is a dict from the settings with
        several values to their values in this combination, as typed.

    Raises:
        ConfigError: a list is empty, or has no value between two commas.
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
    """Return the texts of the several values that `change` gives `key`; None for a single value."""
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
    if not texts or not all(texts):
        given = shown(", ".join(texts) or "[]")
        origin = setting_arguments(f"{key}={given}")
        raise ConfigError(f"{origin}: expected a value before and after each comma")
    return texts


def _accepts(key: str, value: Any) -> bool:
    """Return whether the setting `key` accepts `value`, if all others have their defaults."""
    try:
        load_config(None, [(key, value)])
    except ConfigError:
        return False
    return True
