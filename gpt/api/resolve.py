"""Turn settings into a config, and read its text."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.distributed.ranks import SINGLE, Ranks
from gpt.errors import CheckpointError, GPTError, TextError, Unreadable, UsageError, shown
from gpt.files import check_working_folder
from gpt.terminal import phase

if TYPE_CHECKING:
    from gpt.api.model import Model
    from gpt.config.load import Override
    from gpt.config.schema import Config, DataConfig
    from gpt.runs.format import CheckpointData
    from gpt.text.corpus import Corpus
    from gpt.text.documents import Source
    from gpt.text.vocabulary import Vocabulary

Settings = Mapping[str, Any] | Sequence[str | tuple[str, Any]]
TextPath = str | Path


def resolve(
    config: "Config | str | Path | None",
    text: TextPath | Sequence[TextPath] | None,
    settings: Settings,
    minutes: float | None = None,
    *,
    inherit: Callable[[str], dict[str, Any]] | None = None,
) -> "Config":
    """Return `config`, changed by the arguments `text`, `settings` and `minutes` of `gpt.train`.

    If `settings` contain `train.steps` but not `train.plans`, the other settings of the run's
    length are removed from `config`: `train.minutes`, `train.plans` and `train.max_steps`. For
    `inherit` see `load_config`.

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
            """Convert a numpy or torch value; make others a list, which validation refuses."""
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
        TextError, ConfigError: the text cannot be read, or is too short for a window.
    """
    corpus = encode_sources(config, open_sources(config.data, folder, ranks), vocabulary, ranks)
    corpus.check_fits(config.model.T, config.data)
    return corpus


def run_text(model: "Model", advice: str = "") -> "Corpus":
    """Read the text that `model` was trained on; raise GPTError if it is gone or has changed.

    `advice` is the end of the message: what the user can do without the text.
    """
    try:
        corpus = read_text(run_config(model), model.vocabulary, model.run)
        if corpus.sha256 != model.checkpoint.text_sha256:
            raise UsageError(
                f"{corpus.name} is not the text that {model.run} was trained on, or it has changed "
                f"since"
            )
    except GPTError as error:
        raise type(error)(f"{error}; {advice}" if advice else error) from None
    return corpus


def run_config(model: "Model") -> "Config":
    """Return the config of the run of `model`, as the last resume left it."""
    from gpt.runs.format import is_checkpoint
    from gpt.runs.read import read_summary

    if not is_checkpoint(model.run):
        with suppress(CheckpointError, Unreadable):
            return read_summary(model.run, "last").config
    return model.config


def open_sources(
    data: "DataConfig", folder: Path | None = None, ranks: Ranks = SINGLE
) -> "list[Source]":
    """Open the text and, if `data.val_source` is set, the separate val text; see `read_text`."""
    from gpt.text.cache import reads_standard_input, standard_input
    from gpt.text.sources import open_source

    stdin = None
    if reads_standard_input(data):
        with phase("reading standard input"):
            stdin = ranks.broadcast(standard_input, folder)
    names = [data.source] if data.val_source is None else [data.source, data.val_source]
    with phase("looking for the text"):
        try:
            return [open_source(name, data, stdin) for name in names]
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
        key = "data.vocabulary" if fine_tuned is None else "train.init_from"
        vocabulary = summary_of(run, key).vocabulary
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
    """Read the last checkpoint of `run`, which the setting `key` names, without its weights."""
    from gpt.runs.folder import find_run
    from gpt.runs.read import read_summary

    try:
        return read_summary(find_run(run), "last")
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from None
