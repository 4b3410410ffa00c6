"""What a sweep is to train: written before its first run, compared with later commands."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, field_serializer

from gpt.config.load import load_config
from gpt.config.schema import Config, fields, settled
from gpt.config.yaml import parse
from gpt.errors import GPTError, Interrupted, UsageError
from gpt.files import read_bounded
from gpt.runs.folder import SWEEP
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Vocabulary

LONGEST_PLAN = 2**26  # bytes
WEIGHED = (  # of train, when a model is chosen, or whether one is
    *("train.minutes", "train.max_steps", "train.precision", "train.steps", "train.plans"),
    *("train.init_from", "train.distill"),
)

Load = Callable[[Config, Vocabulary | None], Corpus]
"""The text of a config, by a vocabulary if one is given."""


class PlannedRun(BaseModel):
    """One run: `asked` is the config that the command asks for, `config` is what is trained.

    They differ by the number of threads, on which the digits depend, and by what was chosen for the
    text and the minutes. `values` are those of the keys that have several, as they were written.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    name: str
    values: dict[str, str]
    asked: Config
    config: Config
    text_sha256: str

    @field_serializer("asked", "config")
    def _left_open(self, config: Config) -> dict[str, Any]:
        """What follows from the steps is to follow from those that fit into the minutes."""
        return settled(config)


class Plan(BaseModel):
    """All runs of a sweep, and how many are trained at once."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    format: Literal[1] = 1
    jobs: PositiveInt
    runs: list[PlannedRun]


@dataclass(frozen=True)
class Asked:
    """A run that is asked for: its name, what it differs by, and its config."""

    name: str
    values: dict[str, str]
    config: Config


def new_plan(
    asked: Sequence[Asked],
    jobs: int,
    choose: Callable[[Config], Config] | None,
    load: Load,
    should_stop: Callable[[], bool],
) -> Plan:
    """The plan of a new sweep, whose runs share the threads that torch takes here.

    What is left open is chosen once for all runs that differ in how they are trained alone, so that
    they are of one model; once for each text, and for each time, and for values of the model.

    Raises:
        ConfigError: a value does not go with what was chosen.
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
        if choose is not None:
            own = {key: value for key, value in run.values.items() if not _is_weighed(key)}
            shared = json.dumps({k: value for k, value in run.values.items() if k not in own})
            if shared not in chosen:
                chosen[shared] = choose(load_config(config, [f"{key}=null" for key in own]))
            set_here = [f"{k}={v}" for k, v in own.items() if parse(v, k) is not None]
            config = load_config(chosen[shared], set_here)
        runs.append(
            PlannedRun(
                name=run.name,
                values=run.values,
                asked=run.config,
                config=config,
                text_sha256=load(config, None).sha256,
            )
        )
    return Plan(jobs=jobs, runs=runs)


def _is_weighed(key: str) -> bool:
    """Whether the model that is chosen depends on it."""
    return key in WEIGHED or not (key == "seed" or key.startswith("train."))


def read_plan(folder: Path) -> Plan:
    """That of the sweep in the folder.

    Raises:
        UsageError: its file is not one.
        GPTError: it cannot be read.
    """
    path = folder / SWEEP
    try:
        return Plan.model_validate(json.loads(read_bounded(path, LONGEST_PLAN)))
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
    before = {run.name: run.asked for run in plan.runs}
    now = {run.name: run.config for run in asked}
    if before == now:
        return
    if missing := [name for name in before if name not in now]:
        problem = f"it has {missing[0]}, which this command does not train"
    elif more := [name for name in now if name not in before]:
        problem = f"it does not have {more[0]}, which this command would train"
    else:
        name = next(name for name in now if before[name] != now[name])
        pairs = zip(fields(before[name]), fields(now[name]), strict=True)
        key, old, new = next((key, old, new) for (key, _, old), (*_, new) in pairs if old != new)
        problem = f"its {key} is {old}, here it is {new}"
    raise UsageError(
        f"{folder} is another sweep: {problem}; resume that one by --resume {folder}, replace it "
        f"by --overwrite, or choose another --run-dir"
    )
