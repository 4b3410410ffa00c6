"""What a sweep is to train: written before its first run, compared with later commands."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, field_serializer

from gpt.config.load import load_config, typed_value
from gpt.config.removed import StoredConfig
from gpt.config.schema import SETTINGS, Config, settled
from gpt.device import select_device
from gpt.errors import ConfigError, GPTError, Interrupted, UsageError
from gpt.files import read_bounded
from gpt.recipe.grid import asked_settings
from gpt.runs.find import SWEEP, find_run, source_runs
from gpt.runs.read import read_summary
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Vocabulary
from gpt.training.teacher import check_teacher

LONGEST_PLAN = 2**26  # bytes

Load = Callable[[Config, Vocabulary | None], Corpus]
"""The text of a config, by a vocabulary if one is given."""


class PlannedRun(BaseModel):
    """One run: `asked` is the config that the command asks for, `config` is what is trained.

    They differ by the number of threads, on which the digits depend, and by what was chosen for the
    text and the minutes, if `is_open`. `values` are those of the keys that have several, as they
    were written. `lent_sha256` are of the weights of the runs that it begins or trains with.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    name: str
    values: dict[str, str]
    asked: StoredConfig
    config: StoredConfig
    text_sha256: str
    is_open: bool = False
    lent_sha256: dict[str, str] = {}

    @field_serializer("asked")
    def _asked(self, config: Config) -> dict[str, Any]:
        """What is left open is not to be taken for what is set to a default."""
        return config.model_dump(exclude_unset=True) if self.is_open else settled(config)

    @field_serializer("config")
    def _left_open(self, config: Config) -> dict[str, Any]:
        """What follows from the steps is to follow from those that fit into the minutes."""
        return settled(config)


class Plan(BaseModel):
    """All runs of a sweep, and how many are trained at once."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    format: Literal[1, 2] = 2  # 1 had all defaults in what was asked for
    jobs: PositiveInt
    runs: list[PlannedRun]


@dataclass(frozen=True)
class Asked:
    """A run that is asked for: its name, what it differs by, its config, and if that is open."""

    name: str
    values: dict[str, str]
    config: Config
    is_open: bool = False


def new_plan(
    asked: Sequence[Asked],
    jobs: int,
    choose: Callable[[Config], Config],
    load: Load,
    should_stop: Callable[[], bool],
) -> Plan:
    """The plan of a new sweep, whose runs share the threads that torch takes here.

    What is left open is chosen once for all runs that differ in how they are trained alone, so that
    they are of one model; once for each text, and for each time, and for values of the model.

    Raises:
        ConfigError: a value does not go with what was chosen, or with the run to distill.
        DeviceError: there is no such device.
        Interrupted: `should_stop` returned True: choosing takes its time.
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
            own = {key: value for key, value in run.values.items() if not _is_weighed(key)}
            shared = json.dumps({k: value for k, value in run.values.items() if k not in own})
            if shared not in chosen:
                chosen[shared] = choose(_without(config, own))
            set_here = [f"{k}={v}" for k, v in own.items() if typed_value(k, v) is not None]
            if "muon_learning_rate" in config.train.model_fields_set:  # set, so not in proportion
                set_here.append(f"train.muon_learning_rate={config.train.muon_learning_rate}")
            config = load_config(chosen[shared], set_here)
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
                lent_sha256=lent_sha256(config),
            )
        )
    return Plan(jobs=jobs, runs=runs)


def _without(config: Config, keys: Iterable[str]) -> Config:
    """The config with these open; as it is, if others need a value of theirs: this one will do."""
    try:
        return load_config(config, [f"{key}=null" for key in keys])
    except ConfigError:
        return config


def lent_sha256(config: Config) -> dict[str, str]:
    """Of the weights of the runs that it begins with and distills, by key."""
    lenders = source_runs(config)
    return {key: read_summary(find_run(run)).weights_sha256 for key, run in lenders.items()}


def _is_weighed(key: str) -> bool:
    """Whether the model that is chosen depends on it."""
    return SETTINGS[key].affects_choice or not (key == "seed" or key.startswith("train."))


def read_plan(folder: Path) -> Plan:
    """That of the sweep in the folder.

    Raises:
        UsageError: its file is not one.
        GPTError: it cannot be read.
    """
    path = folder / SWEEP
    try:
        content = json.loads(read_bounded(path, LONGEST_PLAN))
        return Plan.model_validate(content)
    except OSError as error:
        raise GPTError(f"{path}: cannot read it ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # ValidationError is a ValueError
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise UsageError(
            f"{path}: expected what a sweep is to train, got something else ({reason}); replace "
            f"the sweep by --overwrite, or choose another --run-dir"
        ) from None


def check_same(folder: Path, plan: Plan, asked: Sequence[Asked]) -> None:
    """Raises UsageError, which names a difference, unless the plan is of what is asked for."""
    before = {run.name: asked_settings(run.asked, is_open=run.is_open) for run in plan.runs}
    now = {run.name: asked_settings(run.config, is_open=run.is_open) for run in asked}
    if before == now:
        return
    if missing := [name for name in before if name not in now]:
        problem = f"it has {missing[0]}, which this command does not train"
    elif more := [name for name in now if name not in before]:
        problem = f"it does not have {more[0]}, which this command would train"
    else:
        old, new = next((before[name], now[name]) for name in now if before[name] != now[name])
        told = [{key: str(value) for key, value in each.items()} for each in (old, new)]
        key = next(key for key in {**old, **new} if told[0].get(key) != told[1].get(key))
        problem = "its {} is {}, here it is {}".format(
            key, *(each.get(key, "left open") for each in told)
        )
    raise UsageError(
        f"{folder} is another sweep: {problem}; resume that one by --resume {folder}, replace it "
        f"by --overwrite, or choose another --run-dir"
    )
