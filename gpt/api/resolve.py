"""Resolve the arguments of the API to a config and its text."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.distributed.ranks import SINGLE, Ranks
from gpt.errors import UsageError, counted, shown
from gpt.status import phase

if TYPE_CHECKING:
    from gpt.config.load import Override
    from gpt.config.schema import Config, DataConfig
    from gpt.runs.format import CheckpointData
    from gpt.text.corpus import Corpus
    from gpt.text.documents import Source
    from gpt.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

PATIENCE = 3  # evaluations without a new best after which fine-tuning stops
FINE_TUNING_PASSES = 5  # largest number of passes over the text; more passes usually overfit
DEFAULT_MINUTES = 5.0  # default time in minutes for a run whose settings are chosen for its text

Settings = Mapping[str, Any] | Sequence[str | tuple[str, Any]]
Text = str | Path


def resolve_new(
    config: "Config | str | Path | None",
    text: Text | Sequence[Text] | None,
    settings: Settings,
    minutes: float | None,
    init_from: str | Path | None,
    *,
    in_sweep: bool = False,
) -> "Config":
    """Return the config of a new run, and raise ConfigError if a given setting has no effect.

    The arguments are those of `gpt.train`. If `in_sweep`, settings without effect are accepted,
    because they may have an effect in other runs of the sweep.
    """
    from gpt.config.load import check_effects, keys_set_by
    from gpt.config.schema import explicit
    from gpt.runs.find import find_run
    from gpt.runs.fine_tuning import check_same_model, settings_to_inherit

    changes = as_changes(settings)
    given = set() if in_sweep else keys_set_by(changes)
    if init_from is not None:
        changes.append(("train.init_from", str(init_from)))
    if minutes is not None:
        changes.append("train.plans=null")
    settled = resolve(
        config, text, changes, minutes, inherit=lambda run: settings_to_inherit(_summary(run))
    )
    given |= explicit(settled).keys() & {"train.max_steps", "train.warmup_steps"}
    if is_open(config, settled):  # the minutes are chosen later
        given -= {"train.max_steps"}
    check_effects(settled, given)
    if settled.train.init_from is not None:
        check_same_model(_summary(settled.train.init_from), settled)
    if settled.train.distill is not None:
        find_run(settled.train.distill)
    return settled


def resolve(
    config: "Config | str | Path | None",
    text: Text | Sequence[Text] | None,
    settings: Settings,
    minutes: float | None = None,
    *,
    inherit: Callable[[str], dict[str, Any]] | None = None,
) -> "Config":
    """Return `config`, changed by the arguments `text`, `settings` and `minutes` of `gpt.train`.

    If `settings` contain `train.steps` but not `train.plans`, the `train.minutes`, `train.plans`
    and `train.max_steps` of `config` are removed, because they set another length of the run.

    Args:
        config: as for `gpt.train`.
        text: as for `gpt.train`.
        settings: as for `gpt.train`.
        minutes: as for `gpt.train`.
        inherit: takes the name of a run to fine-tune; returns settings that replace the defaults.

    Raises:
        UsageError: both minutes and `train.steps` are given, or an argument has a wrong type.
        ConfigError: a setting has an unknown key or a wrong value.
    """
    from gpt.config.load import keys_set_by, load_config

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
    texts = [text] if isinstance(text, str | Path) else text
    if texts is not None:
        is_list = isinstance(texts, list | tuple) and texts
        if not is_list or not all(isinstance(name, str | Path) for name in texts):
            raise UsageError(
                f"text: expected the name of a text, or a list of names, got {shown(repr(text))}"
            )
        names = [str(name) for name in texts]
        changes.append(("data.source", names if len(names) > 1 else names[0]))
    return load_config(config, changes, inherit=inherit)


def as_changes(settings: Settings) -> "list[Override]":
    """Return `settings` (a mapping, a list or one str) as a list of overrides for `load_config`."""
    if isinstance(settings, Mapping):
        from pydantic_core import to_jsonable_python

        def plain(value: Any) -> Any:
            """Convert a numpy or torch value to Python; else return an invalid value."""
            return value.tolist() if hasattr(value, "tolist") else {"unsupported": repr(value)}

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


def never() -> bool:
    """Return False. This is the default of arguments named `should_stop`."""
    return False


def since_now() -> Callable[[], float]:
    """Return a function that returns the seconds since `since_now` was called."""
    began = time.perf_counter()
    return lambda: time.perf_counter() - began


def name_of(config: "Config | str | Path | None", text: Text | Sequence[Text] | None) -> str:
    """Return the default run name: the stem of the first text, else of the config, else `run`."""
    first = text if isinstance(text, str | Path) else text[0] if text else None
    named = first or (config if isinstance(config, str | Path) else "")
    if named == "-":
        return "stdin"
    return re.sub(r"[^\w.-]+", "-", Path(named).stem).strip("-.") or "run"


def is_open(given: "Config | str | Path | None", settled: "Config") -> bool:
    """Return whether the unset settings of a new run are to be chosen for its text and time.

    This is so if `given`, the argument `config` of `gpt.train`, is None, and the resolved config
    `settled` sets none of `train.steps`, `train.plans`, `train.init_from` and `train.distill`.
    """
    train = settled.train
    is_decided = {"steps", "init_from", "distill"} & train.model_fields_set or train.plans
    return given is None and not is_decided


def ready(
    given: "Config | str | Path | None",
    settled: "Config",
    settings: Settings,
    clock: Callable[[], float],
    should_stop: Callable[[], bool] = never,
    *,
    ranks: Ranks = SINGLE,
) -> tuple["Config", "Corpus"]:
    """Read the text of a new run, and adapt the run's settings to it.

    1. If the user set neither a config nor a length (see `is_open`), choose all unset settings.
    2. Otherwise, if the run fine-tunes another run, limit its steps to prevent overfitting.
    3. Otherwise, use `settled` as it is.

    Args:
        given: the argument `config` of `gpt.train`.
        settled: the resolved config.
        settings: as for `gpt.train`.
        clock: as for `gpt.train`.
        should_stop: as for `gpt.train`.
        ranks: the processes that train one model.

    Returns:
        The config to train with, and the corpus.
    """
    if is_open(given, settled):
        return chosen(settled, clock, should_stop, ranks=ranks)
    corpus = read_text(settled, ranks=ranks)
    if settled.train.init_from is not None:
        settled = _without_overfitting(given, settled, settings, corpus)
    return settled, corpus


def _without_overfitting(
    given: "Config | str | Path | None", settled: "Config", settings: Settings, corpus: "Corpus"
) -> "Config":
    """Return `settled` with limited steps and early stopping, so that fine-tuning cannot overfit.

    Settings in `given` or `settings` are kept. If they contain `train.steps` or `train.plans`, and
    no minutes are set, nothing is changed.
    """
    from gpt.config.load import keys_given, load_config

    keys, train = keys_given(given, as_changes(settings)), settled.train
    if train.minutes is None and {"train.steps", "train.plans"} & keys:
        return settled
    in_step = train.batch_size * settled.model.attention_window
    steps = max(1, int(FINE_TUNING_PASSES * len(corpus.train)) // in_step)
    if "train.warmup_steps" in keys:
        steps = max(steps, train.warmup_steps)
    changes: dict[str, Any] = {"train.patience": PATIENCE}
    if train.minutes is None:
        changes |= {"train.steps": min(steps, train.steps), "train.eval_every": "10 %"}
    else:
        changes["train.max_steps"] = steps
    settled = load_config(settled, [(k, value) for k, value in changes.items() if k not in keys])
    limit = settled.train.max_steps if train.minutes else settled.train.steps
    if limit is not None:
        log.info(
            f"fine-tuning for at most {counted(limit, 'step')}, as a longer run may overfit; "
            f"--set train.steps=N changes that"
        )
    return settled


def chosen(
    config: "Config",
    clock: Callable[[], float],
    should_stop: Callable[[], bool],
    *,
    ranks: Ranks = SINGLE,
) -> tuple["Config", "Corpus"]:
    """Choose the settings that `config` leaves unset; return the complete config and the corpus."""
    from gpt.config.load import load_config

    sources = open_sources(config.data, ranks=ranks)
    corpus = prepared(config, sources, ranks=ranks)

    with phase("loading PyTorch"):
        from gpt.recipe.plan import plan
        from gpt.recipe.unit import reads_better_as_bytes

    open_unit = not {"vocabulary", "max_vocabulary"} & config.data.model_fields_set
    if open_unit and reads_better_as_bytes(corpus):
        log.info(
            f"the text has {len(corpus.vocabulary):,} different characters: the model reads bytes "
            f"instead; --set data.vocabulary=characters changes that"
        )
        config = load_config(config, [("data.vocabulary", "bytes")])
        corpus = prepared(config, sources, ranks=ranks)
    minutes = config.train.minutes or DEFAULT_MINUTES
    best = ranks.broadcast(
        lambda: plan(
            corpus, minutes, config, elapsed_s=clock(), should_stop=should_stop, ranks=ranks
        )
    )
    for line in best.describe():
        log.info(line)
    if best.config.data != config.data:
        corpus = prepared(best.config, sources, ranks=ranks)
    return best.config, corpus


def read_text(
    config: "Config",
    resumed: "Vocabulary | None" = None,
    folder: Path | None = None,
    ranks: Ranks = SINGLE,
) -> "Corpus":
    """Read the text of `config`, and return it as ids, split into train and val.

    Args:
        config: the resolved config.
        resumed: the vocabulary of the run to resume; None for a new run.
        folder: the folder of a run or sweep. If it has a copy of standard input, read that copy.
        ranks: the processes that train together.
    """
    corpus = prepared(config, open_sources(config.data, folder, ranks), resumed, ranks)
    model = config.model
    setting = "model.T" if model.attention_window == model.T else "model.attention_window"
    corpus.check_fits(model.attention_window, setting)
    return corpus


def open_sources(
    data: "DataConfig", folder: Path | None = None, ranks: Ranks = SINGLE
) -> "list[Source]":
    """Return the source of the text and, if `data.val_source` is set, that of the val text."""
    from gpt.text.sources import open_source
    from gpt.text.standard_input import reads_standard_input, standard_input

    stdin = None
    if reads_standard_input(data):
        with phase("reading standard input"):
            stdin = ranks.broadcast(standard_input, folder)
    names = [data.source] if data.val_source is None else [data.source, data.val_source]
    with phase("looking for the text"):
        return [open_source(name, data, stdin) for name in names]


def prepared(
    config: "Config",
    sources: "list[Source]",
    resumed: "Vocabulary | None" = None,
    ranks: Ranks = SINGLE,
) -> "Corpus":
    """Return the ids of `sources`, from the cache if possible.

    Args:
        config: the resolved config.
        sources: the text, and the val text if there is one.
        resumed: as for `read_text`.
        ranks: as for `read_text`.
    """
    from gpt.text.corpus import load_corpus

    data, fine_tuned = config.data, config.train.init_from
    named = None if data.vocabulary in ("characters", "bytes") else data.vocabulary
    vocabulary = None
    if (run := fine_tuned or named) is not None:
        vocabulary = resumed or _summary(run).vocabulary
    if ranks.local_rank > 0:  # one rank of each machine fills its cache
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


def _summary(run: str) -> "CheckpointData":
    """Read the best checkpoint of a run, such as its vocabulary and loss, without its weights."""
    with phase("loading PyTorch"):
        from gpt.runs.read import read_summary
    from gpt.runs.find import find_run

    return read_summary(find_run(run))
