"""Read the text of a run, describe a text, or find the lines of samples that a text lacks."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.api.settings import Settings, TextPath, changed_config, summary_of
from gpt.config.data_config import DataConfig
from gpt.config.schema import Config
from gpt.distributed import SINGLE, Ranks
from gpt.errors import CheckpointError, GPTError, TextError, Unreadable, UsageError, command
from gpt.evaluation.text_report import TextReport, describe_text, lines_in
from gpt.reading.sources import open_source
from gpt.runs.format import is_checkpoint
from gpt.runs.read import read_summary
from gpt.terminal import phase
from gpt.text.cache import reads_standard_input, standard_input
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.documents import Source
from gpt.text.vocabulary import Vocabulary

if TYPE_CHECKING:  # importing these would slow down `gpt data` and the messages of `gpt train`
    from gpt.api.model import Model
    from gpt.sampling.stopping import Sample


def read_text(
    config: Config,
    vocabulary: Vocabulary | None = None,
    folder: Path | None = None,
    ranks: Ranks = SINGLE,
) -> Corpus:
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
    data: DataConfig, folder: Path | None = None, ranks: Ranks = SINGLE
) -> list[Source]:
    """Open the text and, if `data.val_source` is set, the separate val text; see `read_text`."""
    names = [data.source] if data.val_source is None else [data.source, data.val_source]
    stdin = None
    if reads_standard_input(data):
        with phase("reading standard input"):
            stdin = ranks.broadcast(standard_input, folder)
    with phase("looking for the text"):
        try:
            return [open_source(name, data, stdin) for name in names]
        except TextError as error:
            if folder is None:
                raise
            moved = (
                f"the run reads its text relative to the folder in which it was started: run the "
                f"command there, or put the text back (to resume an unfinished run, name a moved "
                f"text: {command('train', 'TEXT', '--resume', 'RUN')})"
            )
            raise TextError(f"{error}; {moved}") from None


def encode_sources(
    config: Config,
    sources: list[Source],
    vocabulary: Vocabulary | None = None,
    ranks: Ranks = SINGLE,
) -> Corpus:
    """Encode the results of `open_sources` as ids, or read these ids from the cache."""
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


def run_text(model: "Model", advice: str = "") -> Corpus:
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


def run_config(model: "Model") -> Config:
    """Return the newest config of the run of `model`; a resume may have changed settings."""
    if not is_checkpoint(model.run):
        with suppress(CheckpointError, Unreadable):
            return read_summary(model.run, "last").config
    return model.config


def describe(text: TextPath | Sequence[TextPath], settings: Settings = ()) -> TextReport:
    """Read a text as training does, and report what it contains.

    Args:
        text: see `train`.
        settings: changes of the settings in the section `data`; see `train`.

    Returns:
        A TextReport: sizes, rare characters, probable decoding errors, and lines of val that are
        also in train.

    Raises:
        ConfigError: a setting is wrong.
        TextError: the text cannot be read.
    """
    config = changed_config(None, text, settings)
    sources = open_sources(config.data)
    corpus = in_characters = encode_sources(config, sources)
    changes: dict[str, Any] = {"vocabulary": "characters"}
    if config.data.vocabulary == "bytes":
        changes["errors"] = "replace"  # the files may be binary
    plain = config.changed(data=changes)
    if plain != config:
        in_characters = encode_sources(plain, open_sources(plain.data))
    return describe_text(sources, corpus, in_characters)


def new_lines(corpus: Corpus, samples: "Sequence[Sample]") -> list[str]:
    """Return the distinct lines of `samples` that do not occur in the text `corpus`.

    The first line of a sample includes the last line of its prompt. The last line of a sample is
    left out as incomplete, unless the sample ended at a stop string that begins with a line end.
    """
    lines: dict[str, None] = {}
    for sample in samples:
        stop = sample.stop or ""
        text = sample.prompt.rpartition("\n")[2] + sample.text.removesuffix(stop)
        *whole, last = text.split("\n")
        lines |= dict.fromkeys([*whole, last] if stop.startswith("\n") else whole)
    known = lines_in(corpus.ids, corpus.vocabulary, lines.keys())
    return [line for line in lines if line and line not in known]
