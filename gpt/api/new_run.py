"""Turn settings into a config, read the text of a run, and prepare a new run."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpt.distributed import SINGLE, Ranks
from gpt.errors import GPTError, TextError, UsageError, counted, shown
from gpt.files import check_working_folder
from gpt.terminal import phase

if TYPE_CHECKING:
    from gpt.config.load import Override
    from gpt.config.schema import Config, DataConfig
    from gpt.runs.format import CheckpointData
    from gpt.text.corpus import Corpus
    from gpt.text.documents import Source
    from gpt.text.vocabulary import Vocabulary
    from gpt.training.stopwatch import Seconds

log = logging.getLogger(__name__)

Settings = Mapping[str, Any] | Sequence[str | tuple[str, Any]]
TextPath = str | Path
Prepared = tuple["Config", "Corpus", "Seconds | None"]
"""Config and text of a new run, and the times that were measured to choose the config, if any."""

PATIENCE = 3  # number of evaluations without a new best loss after which fine-tuning stops
FINE_TUNING_PASSES = 5  # largest number of passes over the text; more passes usually overfit


def changed_config(
    config: "Config | str | Path | None",
    text: TextPath | Sequence[TextPath] | None,
    settings: Settings,
    minutes: float | None = None,
    *,
    inherit: Callable[[str], dict[str, Any]] | None = None,
) -> "Config":
    """Return `config`, changed by the arguments `text`, `settings` and `minutes` of `gpt.train`.

    If `settings` contain `train.steps` but not `train.plans`, discard `train.minutes`,
    `train.plans` and `train.max_steps` of `config`. For `inherit` see `load_config`.

    Raises:
        UsageError: both minutes and `train.steps` are given, or an argument has a wrong type.
        ConfigError: a setting has an unknown key or a wrong value.
    """
    from gpt.config.load import keys_set_by, load_config

    check_working_folder()
    changes = as_changes(settings)
    if minutes is not None:
        changes.append(("train.minutes", minutes))
    given = keys_set_by(changes)
    if "train.steps" in given and "train.plans" not in given:
        if "train.minutes" in given:
            raise UsageError(
                "expected either --minutes or train.steps, got both; leave out train.steps to "
                "train as many steps as fit into the minutes"
            )
        changes += ["train.minutes=null", "train.plans=null"]
        changes += [] if "train.max_steps" in given else ["train.max_steps=null"]
    if text is not None:
        changes.append(("data.source", text))
    return load_config(config, changes, inherit=inherit)


def as_changes(settings: Settings) -> "list[Override]":
    """Return `settings` (a mapping, a list or one str) as a list of overrides for `load_config`."""
    if isinstance(settings, Mapping):
        from pydantic_core import to_jsonable_python

        def plain(value: Any) -> Any:
            """Convert numpy and torch values; return others as a list, which validation rejects."""
            return value.tolist() if hasattr(value, "tolist") else [repr(value)]

        plain_settings = to_jsonable_python(settings, fallback=plain)
        return [*plain_settings.items()]
    if isinstance(settings, str):
        return [settings]
    if not isinstance(settings, Sequence):
        raise UsageError(
            f"settings: expected a dict such as {{'train.steps': 500}}, or a list, got "
            f"{shown(repr(settings))}"
        )
    return [*settings]


def since_now() -> Callable[[], float]:
    """Return a function that returns the seconds since `since_now` was called."""
    began = time.perf_counter()
    return lambda: time.perf_counter() - began


def read_text(
    config: "Config",
    vocabulary: "Vocabulary | None" = None,
    folder: Path | None = None,
    ranks: Ranks = SINGLE,
) -> "Corpus":
    """Read the text of `config`, and return it as ids, split into train and val.

    `vocabulary` is that of an existing run, and None for a new run. `folder` is the folder of a
    run or sweep, which may contain a copy of standard input.

    Raises:
        TextError: the text cannot be read, or train or val is too short for `model.T`.
    """
    corpus = encode_sources(config, open_sources(config.data, folder, ranks), vocabulary, ranks)
    corpus.check_fits(config.model.T, config.data)
    return corpus


def open_sources(
    data: "DataConfig", folder: Path | None = None, ranks: Ranks = SINGLE
) -> "list[Source]":
    """Open the text and, if `data.val_source` is set, the separate val text; see `read_text`."""
    from gpt.text.cache import reads_standard_input, standard_input
    from gpt.text.documents import utf8_source

    names = [data.source] if data.val_source is None else [data.source, data.val_source]
    if (reading := optional("gpt.reading.sources")) is None:
        return [utf8_source(name, data) for name in names]
    stdin = None
    if reads_standard_input(data):
        with phase("reading standard input"):
            stdin = ranks.broadcast(standard_input, folder)
    with phase("looking for the text"):
        try:
            return [reading.open_source(name, data, stdin) for name in names]
        except TextError as error:
            if folder is None:
                raise
            moved = (
                "the run reads its text relative to the folder in which it was started: run the "
                "command there, or put the text back (to resume an unfinished run, name a moved "
                "text: gpt train TEXT --resume RUN)"
            )
            raise TextError(f"{error}; {moved}") from None


def encode_sources(
    config: "Config",
    sources: "list[Source]",
    vocabulary: "Vocabulary | None" = None,
    ranks: Ranks = SINGLE,
) -> "Corpus":
    """Encode the results of `open_sources` as ids, or read these ids from the cache."""
    from gpt.text.corpus import load_corpus

    data, fine_tuned = config.data, config.train.init_from
    named = None if data.vocabulary in ("characters", "bytes") else data.vocabulary
    if (run := fine_tuned or named) is None:
        vocabulary = None  # the text determines the vocabulary
    elif vocabulary is None:
        wanted = "data.vocabulary (characters, bytes or a run)"
        vocabulary = summary_of(run, "train.init_from" if fine_tuned else wanted).vocabulary
    if ranks.local_rank > 0:  # only the first rank of each machine writes to the cache
        ranks.wait()
    corpus = load_corpus(
        sources[0],
        data,
        val_source=sources[1] if len(sources) > 1 else None,
        vocabulary=vocabulary,
        extends=fine_tuned is not None,
        seed=config.seed,
    )
    if ranks.local_rank == 0:
        ranks.wait()
    return corpus


def summary_of(run: str, key: str) -> "CheckpointData":
    """Read the last checkpoint of `run`, a value of the setting `key`, but not its weights."""
    from gpt.runs.folder import find_run
    from gpt.runs.read import read_summary

    try:
        return read_summary(find_run(run), "last")
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from None


def optional(module: str) -> ModuleType | None:
    """Return a module from outside the core of the package; None if it is not there."""
    package = module.rpartition(".")[0]
    return import_module(module) if find_spec(package) and find_spec(module) else None


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
        """Default run name: stem of the text file (`stdin` for `-`) or config file, else `run`."""
        text = self.text
        first = text if isinstance(text, str | Path) else text[0] if text else None
        named = first or (self.config if isinstance(self.config, str | Path) else "")
        if named == "-":
            return "stdin"
        return re.sub(r"[^\w.-]+", "-", Path(named).stem).strip("-.") or "run"

    def resolve(self, *, in_sweep: bool = False) -> "Config":
        """Return the config, before gpt chooses the settings that are left unset.

        Raise ConfigError if a given setting has no effect. With `in_sweep`, accept most settings
        without an effect, because they may have one in other runs of the sweep.
        """
        from gpt.config.load import check_effects, keys_set_by
        from gpt.config.schema import explicit

        def inherited(run: str) -> dict[str, Any]:
            from gpt.runs.recovery import settings_to_inherit

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
            from gpt.runs.recovery import check_same_model

            check_same_model(summary_of(config.train.init_from, "train.init_from"), config)
        return config

    def needs_choice(self, config: "Config") -> bool:
        """Return whether gpt has to choose the unset settings of the resolved `config`.

        gpt chooses them if the user gave no config and set none of `train.steps`, `train.plans`
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
            if (extras := optional("gpt.api.extras")) is None:
                raise GPTError(
                    "choosing settings for a text needs the folder gpt/recipe; give --config, or "
                    "set train.steps"
                )
            prepared: Prepared = extras.choose_settings(config, clock, should_stop, ranks)
            return prepared
        corpus = read_text(config, ranks=ranks)
        if config.train.init_from is not None:
            config = self._limit_fine_tuning(config, corpus)
        return config, corpus, None

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
