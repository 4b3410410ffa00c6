"""Turn the arguments `config`, `text`, `minutes` and `settings` into a config; read named runs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from gpt.config.load import Override, keys_set_by, load_config
from gpt.config.schema import Config
from gpt.errors import UsageError, arguments, shown
from gpt.files import check_working_folder
from gpt.runs.folder import find_run
from gpt.runs.format import CheckpointData
from gpt.runs.read import read_summary

Settings = Mapping[str, Any] | Sequence[str | tuple[str, Any]]
TextPath = str | Path


def changed_config(
    config: Config | str | Path | None,
    text: TextPath | Sequence[TextPath] | None,
    settings: Settings,
    minutes: float | None = None,
    *,
    inherit: Callable[[str], dict[str, Any]] | None = None,
) -> Config:
    """Return `config`, changed by the arguments `text`, `settings` and `minutes` of `gpt.train`.

    If `settings` contain `train.steps` but not `train.plans`, discard `train.minutes`,
    `train.plans` and `train.max_steps` of `config`. For `inherit` see `load_config`.

    Raises:
        UsageError: both minutes and `train.steps` are given, or an argument has a wrong type.
        ConfigError: a setting has an unknown key or a wrong value.
    """
    check_working_folder()
    changes = as_changes(settings)
    if minutes is not None:
        changes.append(("train.minutes", minutes))
    given = keys_set_by(changes)
    if "train.steps" in given and "train.plans" not in given:
        if "train.minutes" in given:
            raise UsageError(
                f"expected either {arguments('minutes')} or train.steps, got both; leave out "
                f"train.steps to train as many steps as fit into the minutes"
            )
        changes += ["train.minutes=null", "train.plans=null"]
        changes += [] if "train.max_steps" in given else ["train.max_steps=null"]
    if text is not None:
        changes.append(("data.source", text))
    return load_config(config, changes, inherit=inherit)


def as_changes(settings: Settings) -> list[Override]:
    """Return `settings` (a mapping, a list or one str) as a list of overrides for `load_config`."""
    if isinstance(settings, Mapping):

        def plain(value: Any) -> Any:
            """Convert numpy and torch values; return others as a list, which validation rejects."""
            return value.tolist() if hasattr(value, "tolist") else [repr(value)]

        return [*to_jsonable_python(settings, fallback=plain).items()]
    if isinstance(settings, str):
        return [settings]
    if not isinstance(settings, Sequence):
        raise UsageError(
            f"settings: expected a dict such as {{'train.steps': 500}}, or a list, got "
            f"{shown(repr(settings))}"
        )
    return [*settings]


def summary_of(run: str, key: str) -> CheckpointData:
    """Read the last checkpoint of `run`, a value of the setting `key`, but not its weights."""
    try:
        return read_summary(find_run(run), "last")
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from None
