"""The plan of a sweep: its runs and their configs, written before the first run begins."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_serializer,
)

from gpt.config.load import load_config, typed_value
from gpt.config.removed import StoredConfig
from gpt.config.schema import SETTINGS, Config, settled
from gpt.device import select_device
from gpt.errors import ConfigError, GPTError, Interrupted, UsageError
from gpt.files import read_bounded
from gpt.recipe.grid import AskedRun
from gpt.runs.find import SWEEP, find_run, source_runs
from gpt.runs.read import read_summary
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Vocabulary
from gpt.training.teacher import check_teacher

MAX_PLAN_BYTES = 2**26

Load = Callable[[Config, Vocabulary | None], Corpus]
"""Reads the text of a config, encoded with the given vocabulary if there is one."""


class PlannedRun(BaseModel):
    """A run of a plan: `asked` is the config of the command, `config` the one to train with.

    In `config`, the number of threads and the open settings are set. `text_sha256` and
    `source_sha256` identify the text, and the weights of the run in each of `train.init_from` and
    `train.distill`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    name: str
    values: dict[str, str]
    asked: StoredConfig
    config: StoredConfig
    text_sha256: str
    is_open: bool = False
    source_sha256: dict[str, str] = Field(  # the second name is that of older versions
        {}, validation_alias=AliasChoices("source_sha256", "lent_sha256")
    )

    @field_serializer("asked")
    def _asked(self, config: Config) -> dict[str, Any]:
        """Leave out open settings, which differ from settings that are set to a default."""
        return config.model_dump(exclude_unset=True) if self.is_open else settled(config)

    @field_serializer("config")
    def _config(self, config: Config) -> dict[str, Any]:
        """Leave out defaults that depend on `train.steps`, which minutes change."""
        return settled(config)


class SweepPlan(BaseModel):
    """All runs of a sweep, and the number of runs to train at once."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    format: Literal[1, 2] = 2  # in format 1, `asked` had all defaults
    jobs: PositiveInt
    runs: list[PlannedRun]


def new_plan(
    asked: Sequence[AskedRun],
    jobs: int,
    choose: Callable[[Config], Config],
    load: Load,
    should_stop: Callable[[], bool],
) -> SweepPlan:
    """Return the plan of a new sweep.

    Open settings are chosen once for all runs that differ only in how they are trained, so that
    these have the same model. Runs that differ in text, time or model are each chosen for.

    Args:
        asked: the runs.
        jobs: the number of runs to train at once; they share the threads of torch.
        choose: returns the config to train with, given one with open settings.
        load: reads the text of a config.
        should_stop: called before each run, as choosing takes time.

    Raises:
        ConfigError: a value does not fit what was chosen, or the run to distill.
        DeviceError: this machine does not have the device.
        Interrupted: `should_stop` returned True.
    """
    threads = max(1, torch.get_num_threads() // min(jobs, len(asked)))
    chosen: dict[str, Config] = {}
    runs = []
    for run in asked:
        if should_stop():
            raise Interrupted("stopped before the first run began; nothing is written")
        config = run.config
        if config.threads == "auto":
            config = config.model_copy(update={"threads": threads})
        if run.is_open:
            own = {key: value for key, value in run.values.items() if not _changes_choice(key)}
            shared = json.dumps({k: value for k, value in run.values.items() if k not in own})
            if shared not in chosen:
                chosen[shared] = choose(_without(config, own))
            changes = [f"{k}={v}" for k, v in own.items() if typed_value(k, v) is not None]
            if "muon_learning_rate" in config.train.model_fields_set:  # do not scale it
                changes.append(f"train.muon_learning_rate={config.train.muon_learning_rate}")
            config = load_config(chosen[shared], changes)
        corpus = load(config, None)
        select_device(config.device)
        check_teacher(config, corpus.vocabulary)
        runs.append(
            PlannedRun(
                name=run.name,
                values=run.values,
                asked=run.config,
                config=config,
                text_sha256=corpus.sha256,
                is_open=run.is_open,
                source_sha256=source_sha256(config),
            )
        )
    return SweepPlan(jobs=jobs, runs=runs)


def _changes_choice(key: str) -> bool:
    """Return whether the model that is chosen depends on the setting `key`."""
    return SETTINGS[key].affects_choice or not (key == "seed" or key.startswith("train."))


def _without(config: Config, keys: Iterable[str]) -> Config:
    """Return the config without the settings `keys`; unchanged if others need one of them."""
    try:
        return load_config(config, [f"{key}=null" for key in keys])
    except ConfigError:
        return config


def source_sha256(config: Config) -> dict[str, str]:
    """Return the SHA-256 of each source run's weights, by setting."""
    runs = source_runs(config)
    return {key: read_summary(find_run(run)).weights_sha256 for key, run in runs.items()}


def read_plan(folder: Path) -> SweepPlan:
    """Read the plan of the sweep in `folder`.

    Raises:
        UsageError: the file is not a plan.
        GPTError: the file cannot be read.
    """
    path = folder / SWEEP
    try:
        content = json.loads(read_bounded(path, MAX_PLAN_BYTES))
        return SweepPlan.model_validate(content)
    except OSError as error:
        raise GPTError(f"{path}: cannot read it ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # ValidationError is a ValueError
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise UsageError(
            f"{path}: expected the plan of a sweep, got something else ({reason}); replace the "
            f"sweep by --overwrite, or choose another --run-dir"
        ) from None


def check_same(folder: Path, plan: SweepPlan, asked: Sequence[AskedRun]) -> None:
    """Raise UsageError, which names a difference, unless the plan has the runs that are asked for.

    Args:
        folder: the folder of the sweep, for the message.
        plan: its plan.
        asked: the runs of the command.
    """
    planned = [AskedRun(run.name, run.values, run.asked, run.is_open) for run in plan.runs]
    before, now = ({run.name: run.settings for run in runs} for runs in (planned, asked))
    if before == now:
        return
    if missing := [name for name in before if name not in now]:
        problem = f"it has {missing[0]}, which this command does not train"
    elif added := [name for name in now if name not in before]:
        problem = f"it does not have {added[0]}, which this command would train"
    else:
        name = next(name for name in now if before[name] != now[name])
        old, new = (
            {key: str(value) for key, value in each[name].items()} for each in (before, now)
        )
        key = next(key for key in {**old, **new} if old.get(key) != new.get(key))
        was, is_now = old.get(key, "left open"), new.get(key, "left open")
        problem = f"its {key} is {was}, here it is {is_now}"
    raise UsageError(
        f"{folder} is another sweep: {problem}; resume that one by --resume {folder}, replace it "
        f"by --overwrite, or choose another --run-dir"
    )
