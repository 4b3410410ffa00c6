"""Find the config of a new run, and read its text."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpt.api.resolve import (
    Settings,
    TextPath,
    as_changes,
    read_text,
    resolve,
    summary_of,
)
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.errors import GPTError, counted

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.text.corpus import Corpus
    from gpt.training.stopwatch import Seconds

log = logging.getLogger(__name__)

PATIENCE = 3  # evaluations without a new best after which fine-tuning stops
FINE_TUNING_PASSES = 5  # largest number of passes over the text; more passes usually overfit


def find_extras() -> ModuleType | None:
    """Return the module gpt.api.extras; None if the core of the package stands alone."""
    return import_module("gpt.api.extras") if find_spec("gpt.api.extras") else None


@dataclass(frozen=True)
class Prepared:
    """Config and text of a new run, and the times that were measured to choose the config."""

    config: "Config"
    corpus: "Corpus"
    probed: "Seconds | None" = None  # seconds of a step and of scoring a character, if measured


@dataclass(frozen=True)
class NewRun:
    """The arguments of `gpt.train` that determine the config and the text of a run."""

    config: "Config | str | Path | None"
    text: TextPath | Sequence[TextPath] | None
    settings: Settings
    minutes: float | None
    init_from: str | Path | None

    @property
    def name(self) -> str:
        """Default name: file stem of the text (`stdin` for `-`), else of the config, else `run`."""
        text = self.text
        first = text if isinstance(text, str | Path) else text[0] if text else None
        named = first or (self.config if isinstance(self.config, str | Path) else "")
        if named == "-":
            return "stdin"
        return re.sub(r"[^\w.-]+", "-", Path(named).stem).strip("-.") or "run"

    def resolve(self, *, in_sweep: bool = False) -> "Config":
        """Return the config, before gpt chooses the settings that are left unset.

        Raise ConfigError if a given setting has no effect. With `in_sweep`, accept most of these
        settings, because they may have an effect in other runs of the sweep.
        """
        from gpt.config.load import check_effects, keys_set_by
        from gpt.config.schema import explicit
        from gpt.runs.fine_tuning import check_same_model, settings_to_inherit

        changes = as_changes(self.settings)
        given = set() if in_sweep else keys_set_by(changes)
        if self.init_from is not None:
            changes.append(("train.init_from", str(self.init_from)))
        if self.minutes is not None:
            changes.append("train.plans=null")
        config = resolve(
            self.config,
            self.text,
            changes,
            self.minutes,
            inherit=lambda run: settings_to_inherit(summary_of(run, "train.init_from")),
        )
        given |= explicit(config).keys() & {"train.max_steps", "train.warmup_steps"}
        if self.needs_choice(config):  # gpt will set `train.minutes`, which max_steps limits
            given -= {"train.max_steps"}
        check_effects(config, given)
        if config.train.init_from is not None:
            check_same_model(summary_of(config.train.init_from, "train.init_from"), config)
        return config

    def needs_choice(self, config: "Config") -> bool:
        """Return whether gpt has to choose the unset settings of the resolved `config`.

        That is the case if the user gave no config and set none of `train.steps`, `train.plans`
        and `train.init_from`.
        """
        train = config.train
        is_decided = {"steps", "init_from"} & train.model_fields_set or train.plans
        return self.config is None and not is_decided

    def prepare(
        self,
        config: "Config",
        clock: Callable[[], float],
        should_stop: Callable[[], bool] = lambda: False,
        ranks: Ranks = SINGLE,
    ) -> Prepared:
        """Read the text, and adapt the config to it.

        1. If `needs_choice`, choose the unset settings for the text and the time.
        2. Otherwise, if the run fine-tunes another run, limit its steps to prevent overfitting.
        3. Otherwise, leave the config as it is.
        """
        if self.needs_choice(config):
            if (extras := find_extras()) is None:
                raise GPTError(
                    "choosing settings for a text needs the folder gpt/recipe; give --config, or "
                    "set train.steps"
                )
            prepared: Prepared = extras.choose_settings(config, clock, should_stop, ranks)
            return prepared
        corpus = read_text(config, ranks=ranks)
        if config.train.init_from is not None:
            config = self._limit_fine_tuning(config, corpus)
        return Prepared(config, corpus)

    def _limit_fine_tuning(self, config: "Config", corpus: "Corpus") -> "Config":
        """Return `config` with limited steps and early stopping; keep settings that the user gave.

        If the user set `train.steps` or `train.plans` and no minutes, return `config` unchanged.
        """
        from gpt.config.load import keys_given, load_config

        keys, train = keys_given(self.config, as_changes(self.settings)), config.train
        if train.minutes is None and {"train.steps", "train.plans"} & keys:
            return config
        in_step = train.batch_size * config.model.T
        steps = max(1, int(FINE_TUNING_PASSES * len(corpus.train)) // in_step)
        if "train.warmup_steps" in keys:
            steps = max(steps, train.warmup_steps)
        changes: dict[str, Any] = {"train.patience": PATIENCE}
        if train.minutes is None:
            changes |= {"train.steps": min(steps, train.steps), "train.eval_every": "10 %"}
        else:
            changes["train.max_steps"] = steps
        config = load_config(config, [(k, value) for k, value in changes.items() if k not in keys])
        limit = config.train.max_steps if train.minutes else config.train.steps
        if limit is not None:
            log.info(
                f"fine-tuning for at most {counted(limit, 'step')}, as a longer run may overfit; "
                f"train.steps=N changes that"
            )
        return config
