"""Prepare a new run: resolve its config, read its text, and choose the settings that are unset."""

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.api.settings import Settings, TextPath, as_changes, changed_config, summary_of
from gpt.config.load import check_effects, keys_given, keys_set_by, load_config
from gpt.config.schema import Config, explicit
from gpt.distributed import SINGLE, Ranks
from gpt.errors import counted, setting_arguments
from gpt.runs.fine_tuning import check_same_model, settings_to_inherit
from gpt.terminal import phase

# functions import gpt.api.run_text, so that errors in a config are shown sooner
if TYPE_CHECKING:
    from gpt.text.corpus import Corpus
    from gpt.training.stopwatch import Seconds

log = logging.getLogger(__name__)

DEFAULT_MINUTES = 5.0  # default training time in minutes if gpt chooses the settings
PATIENCE = 3  # number of evaluations without a new best loss after which fine-tuning stops
FINE_TUNING_PASSES = 5  # largest number of passes over the text; more passes usually overfit


def since_now() -> Callable[[], float]:
    """Return a function that returns the seconds since `since_now` was called."""
    began = time.perf_counter()
    return lambda: time.perf_counter() - began


@dataclass(frozen=True)
class NewRun:
    """The arguments of `gpt.train` that determine the config and the text of a run."""

    config: Config | str | Path | None
    text: TextPath | Sequence[TextPath] | None
    settings: Settings
    minutes: float | None
    init_from: str | Path | None

    @property
    def name(self) -> str:
        """Default run name: stem of the text file (`stdin` for `-`) or config file, else `run`."""
        text = self.text
        first = text if isinstance(text, str | Path) else text[0] if text else None
        named = first or (self.config if isinstance(self.config, str | Path) else "")
        if named == "-":
            return "stdin"
        return re.sub(r"[^\w.-]+", "-", Path(named).stem).strip("-.") or "run"

    def resolve(self, *, in_sweep: bool = False) -> Config:
        """Return the config, before gpt chooses the settings that are left unset.

        Raise ConfigError if a given setting has no effect. With `in_sweep`, accept most settings
        without an effect, because they may have one in other runs of the sweep.
        """

        def inherited(run: str) -> dict[str, Any]:
            return settings_to_inherit(summary_of(run, "train.init_from"))

        changes = as_changes(self.settings)
        given = set() if in_sweep else keys_set_by(changes)
        if self.init_from is not None:
            changes.append(("train.init_from", str(self.init_from)))
        if self.minutes is not None:
            changes.append("train.plans=null")
        config = changed_config(self.config, self.text, changes, self.minutes, inherit=inherited)
        given |= explicit(config).keys() & {"train.max_steps", "train.warmup_steps"}
        if self.needs_choice(config):  # gpt will set train.minutes, so max_steps has an effect
            given -= {"train.max_steps"}
        check_effects(config, given)
        if config.train.init_from is not None:
            check_same_model(summary_of(config.train.init_from, "train.init_from"), config)
        return config

    def needs_choice(self, config: Config) -> bool:
        """Return whether gpt has to choose the unset settings of the resolved `config`.

        gpt chooses them if the user gave no config and set none of `train.steps`, `train.plans`
        and `train.init_from`.
        """
        train = config.train
        is_decided = {"steps", "init_from"} & train.model_fields_set or train.plans
        return self.config is None and not is_decided

    def prepare(
        self,
        config: Config,
        clock: Callable[[], float],
        should_stop: Callable[[], bool] = lambda: False,
        ranks: Ranks = SINGLE,
    ) -> tuple[Config, "Corpus", "Seconds | None"]:
        """Return the config, adapted to the text; the text; and times that were measured for it.

        1. If `needs_choice`, choose the unset settings for the text and the time.
        2. Otherwise, if the run fine-tunes another run, limit its steps to prevent overfitting.
        3. Otherwise, leave the config as it is.
        """
        if self.needs_choice(config):
            return choose_settings(config, clock, should_stop, ranks)
        from gpt.api.run_text import read_text

        corpus = read_text(config, ranks=ranks)
        if config.train.init_from is not None:
            config = self._limit_fine_tuning(config, corpus)
        return config, corpus, None

    def _limit_fine_tuning(self, config: Config, corpus: "Corpus") -> Config:
        """Limit the steps, and set early stopping, unless the user gave these settings."""
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
                f"{setting_arguments('train.steps=N')} changes that"
            )
        return config


def choose_settings(
    config: Config,
    clock: Callable[[], float],
    should_stop: Callable[[], bool],
    ranks: Ranks = SINGLE,
) -> tuple[Config, "Corpus", "Seconds | None"]:
    """Read the text, and choose the settings that `config` leaves unset; see `NewRun.prepare`."""
    from gpt.api.run_text import encode_sources, open_sources

    sources = open_sources(config.data, ranks=ranks)
    corpus = encode_sources(config, sources, ranks=ranks)
    with phase("loading PyTorch"):
        from gpt.recipe.choose import choose_config, reads_better_as_bytes

    if "vocabulary" not in config.data.model_fields_set and reads_better_as_bytes(corpus):
        log.info(
            f"the text has {len(corpus.vocabulary):,} different characters: the model reads bytes "
            f"instead; {setting_arguments('data.vocabulary=characters')} changes that"
        )
        config = load_config(config, [("data.vocabulary", "bytes")])
        corpus = encode_sources(config, sources, ranks=ranks)
    minutes = config.train.minutes or DEFAULT_MINUTES
    chosen, probed = ranks.broadcast(
        lambda: choose_config(corpus, config, minutes, clock, should_stop, ranks)
    )
    if chosen.data != config.data:
        corpus = encode_sources(chosen, sources, ranks=ranks)
    return chosen, corpus, probed
