"""From what was asked for to what is trained: the resolved config, and its text."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt.distributed import first_on_each_machine, from_main
from gpt.errors import UsageError

if TYPE_CHECKING:
    from gpt.config.schema import Config, DataConfig
    from gpt.recipe.plan import Plan
    from gpt.runs.checkpoint import CheckpointData
    from gpt.text.corpus import Corpus
    from gpt.text.documents import Source
    from gpt.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

DEFAULT_MINUTES = 5.0  # of a run whose config is chosen for its text

Settings = Mapping[str, Any] | Sequence[str]
Text = str | Path


def resolve_new(
    config: "Config | str | Path | None",
    text: Text | Sequence[Text] | None,
    settings: Settings,
    minutes: float | None,
    init_from: str | Path | None,
) -> "Config":
    """The config of a new run: what is not set has its default, or is the run's to fine-tune."""
    from gpt.runs.fine_tuning import check_same_model, settings_to_inherit
    from gpt.runs.folder import find_teacher

    settled = resolve(
        config,
        text,
        settings,
        minutes,
        init_from=None if init_from is None else str(init_from),
        inherit=lambda run: settings_to_inherit(_summary(run)),
    )
    if settled.train.init_from is not None:
        check_same_model(_summary(settled.train.init_from), settled)
    if settled.train.distill is not None:
        find_teacher(settled.train.distill)
    return settled


def resolve(
    config: "Config | str | Path | None",
    text: Text | Sequence[Text] | None,
    settings: Settings,
    minutes: float | None = None,
    *,
    plans_again: bool = True,
    init_from: str | None = None,
    inherit: Callable[[str], dict[str, Any]] | None = None,
) -> "Config":
    """Return the config with these settings.

    `train.steps` among the settings replaces the minutes and the plans of the config.

    Args:
        config, text, settings, minutes: see `gpt.train`.
        plans_again: whether `minutes` replace the plans of the config, too.
        init_from, inherit: see `load_config`.

    Returns:
        The validated config.

    Raises:
        ConfigError: the file, a key or a value is wrong.
        UsageError: the settings have both minutes and steps.
    """
    from gpt.config.load import keys_set_by, load_config

    changes = as_changes(settings)
    if minutes is not None:
        changes += [f"train.minutes={minutes}", *(["train.plans=null"] if plans_again else [])]
    given = keys_set_by(changes)
    if "train.steps" in given and "train.plans" not in given:
        if "train.minutes" in given:
            raise UsageError(
                "expected either --minutes or train.steps, got both: as many steps as fit into "
                "the minutes are trained"
            )
        changes += ["train.minutes=null", "train.plans=null"]
    texts = [text] if isinstance(text, str | Path) else text or []
    names = [str(name) for name in texts] or None
    return load_config(config, changes, names, init_from=init_from, inherit=inherit)


def as_changes(settings: Settings) -> list[str]:
    """Return each setting as `section.key=value`."""
    from gpt.config.yaml import as_flow

    if isinstance(settings, Mapping):
        return [f"{key}={as_flow(_plain(value))}" for key, value in settings.items()]
    return [settings] if isinstance(settings, str) else [*settings]


def _plain(value: Any) -> Any:
    """Return `value` with paths as text, and NumPy's scalars and arrays as Python's."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def never() -> bool:
    """Return False: the `should_stop` of a call without one."""
    return False


def since_now() -> Callable[[], float]:
    """A clock: seconds since this call."""
    began = time.perf_counter()
    return lambda: time.perf_counter() - began


def name_of(config: "Config | str | Path | None", text: Text | Sequence[Text] | None) -> str:
    """Return the default name of a run's folder.

    Args:
        config, text: see `gpt.train`.

    Returns:
        The name of the first text without its folder and suffix (`neko` for `texts/neko.txt`),
        without a text that of the config, and `run` without either.
    """
    first = text if isinstance(text, str | Path) else text[0] if text else None
    named = first or (config if isinstance(config, str | Path) else "")
    if named == "-":
        return "stdin"
    return re.sub(r"[^\w.-]+", "-", Path(named).stem).strip("-.") or "run"


def read_text(config: "Config", resumed: "Vocabulary | None" = None) -> tuple["Config", "Corpus"]:
    """The text, and the config that names where it is found again, if it is standard input.

    A run that is resumed has what another run lent it, its vocabulary.
    """
    config = with_kept_input(config)
    corpus = prepared(config, open_sources(config.data), resumed)
    corpus.check_fits(config.model.T)
    return config, corpus


def ready(
    given: "Config | str | Path | None",
    settled: "Config",
    clock: Callable[[], float],
    should_stop: Callable[[], bool],
) -> tuple["Config", "Corpus"]:
    """Return the config to train by, and its text; choose what `given` leaves open."""
    return chosen(settled, clock, should_stop) if is_open(given, settled) else read_text(settled)


def is_open(given: "Config | str | Path | None", settled: "Config") -> bool:
    """Whether how a new run trains is left to us."""
    train = settled.train
    says_how = {"steps", "init_from", "distill"} & train.model_fields_set or train.plans
    return given is None and not says_how


def chosen(
    config: "Config", clock: Callable[[], float], should_stop: Callable[[], bool]
) -> tuple["Config", "Corpus"]:
    """The config with all that it leaves open chosen for its text and time; and the text.

    Raises Interrupted if `should_stop` returned True.
    """
    config = with_kept_input(config)
    sources = open_sources(config.data)
    corpus = prepared(config, sources)
    minutes = config.train.minutes or DEFAULT_MINUTES
    best = from_main(_planned, corpus, minutes, config, clock, should_stop)
    for line in best.describe():
        log.info(line)
    if best.config.data != config.data:
        corpus = prepared(best.config, sources)
    return best.config, corpus


def _planned(
    corpus: "Corpus",
    minutes: float,
    config: "Config",
    clock: Callable[[], float],
    should_stop: Callable[[], bool],
) -> "Plan":
    from gpt.recipe.plan import plan

    return plan(corpus, minutes, config, elapsed_s=clock(), should_stop=should_stop)


def with_kept_input(config: "Config") -> "Config":
    """The same, but what standard input holds is kept in the cache and named as it is there."""
    from gpt.text.standard_input import keep_input

    kept = from_main(keep_input, config.data)
    return config if kept is config.data else config.model_copy(update={"data": kept})


def with_one_input(configs: "list[Config]") -> "list[Config]":
    """The same for several configs: standard input is read once."""
    from gpt.text.standard_input import keep_standard_input, reads_input, with_input

    if not any(reads_input(config.data) for config in configs):
        return configs
    name = keep_standard_input()
    return [config.model_copy(update={"data": with_input(config.data, name)}) for config in configs]


def open_sources(data: "DataConfig") -> "list[Source]":
    """The text, and that of val if it has one of its own."""
    from gpt.text.sources import open_source

    names = [data.source] if data.val_source is None else [data.source, data.val_source]
    return [open_source(name, data) for name in names]


def prepared(
    config: "Config", sources: "list[Source]", resumed: "Vocabulary | None" = None
) -> "Corpus":
    """The corpus of these sources, in the cache; with the vocabulary that a run lends, if one does.

    Raises TextError.
    """
    from gpt.text.corpus import load_corpus

    data, fine_tuned = config.data, config.train.init_from
    lender = None if data.vocabulary in ("characters", "bytes") else data.vocabulary
    vocabulary = None
    if (run := fine_tuned or lender) is not None:
        vocabulary = resumed or _summary(run).vocabulary
    source, val_source = (*sources, None)[:2]
    assert source is not None
    with first_on_each_machine():
        return load_corpus(
            source,
            data,
            val_source=val_source,
            vocabulary=vocabulary,
            extends=fine_tuned is not None,
            seed=config.seed,
        )


def _summary(run: str) -> "CheckpointData":
    """The best checkpoint of a run, without its weights."""
    from gpt.runs.checkpoint import read_summary
    from gpt.runs.folder import find_run

    return read_summary(find_run(run))
