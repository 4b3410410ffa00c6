"""Optional parts of training: choose settings, estimate cost, measure a baseline, draw pictures."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.api.new_run import (
    NewRun,
    Prepared,
    Settings,
    TextPath,
    encode_sources,
    open_sources,
    since_now,
)
from gpt.distributed import SINGLE, Ranks, check_alone
from gpt.terminal import phase

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.model.ensemble import LanguageModel
    from gpt.recipe.dry_run import Estimate
    from gpt.text.corpus import Corpus
    from gpt.text.vocabulary import Ids
    from gpt.training.run_context import Extras

log = logging.getLogger(__name__)

DEFAULT_MINUTES = 5.0  # default training time in minutes if gpt chooses the settings
PICTURE_DPI = 80  # dots per inch; low enough for pictures of a few heads to fit a screen


def choose_settings(
    config: "Config",
    clock: Callable[[], float],
    should_stop: Callable[[], bool],
    ranks: Ranks = SINGLE,
) -> Prepared:
    """Read the text, and choose the settings that `config` leaves unset; see `NewRun.prepare`."""
    from gpt.config.load import load_config

    sources = open_sources(config.data, ranks=ranks)
    corpus = encode_sources(config, sources, ranks=ranks)

    with phase("loading PyTorch"):
        from gpt.recipe.choose import choose_config, reads_better_as_bytes

    is_unit_open = "vocabulary" not in config.data.model_fields_set
    if is_unit_open and reads_better_as_bytes(corpus):
        log.info(
            f"the text has {len(corpus.vocabulary):,} different characters: the model reads bytes "
            f"instead; data.vocabulary=characters changes that"
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


def estimate(
    config: "Config | str | Path | None" = None,
    *,
    text: TextPath | Sequence[TextPath] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    init_from: str | Path | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple["Config", "Estimate"]:
    """Estimate the parameters, memory and time of a training run, without training it.

    Args:
        config: as for `train`.
        text: as for `train`.
        minutes: as for `train`.
        settings: as for `train`.
        init_from: as for `train`.
        clock: as for `train`.

    Returns:
        The resolved config, and an Estimate: `parameters` by part, bytes of memory, and seconds.

    Raises:
        ConfigError, TextError, DeviceError, OutOfMemory: see `train`.
        UsageError: torchrun started several processes.
    """
    check_alone("a dry run")
    clock = clock or since_now()
    new = NewRun(config, text, settings, minutes, init_from)
    chosen, corpus, probed = new.prepare(new.resolve(), clock)
    with phase("loading PyTorch"):
        from gpt.recipe.dry_run import estimate_run
    return estimate_run(chosen, corpus, clock, probed)


def training_extras() -> "Extras":
    """Return the optional functions for a run, which measure a baseline and draw attention."""
    from gpt.evaluation.baselines import trigram_bits_per_character
    from gpt.training.run_context import Extras

    return Extras(trigram_bits_per_character, draw_attention)


def draw_attention(model: "LanguageModel", corpus: "Corpus", excerpt: "Ids", title: str) -> bytes:
    """Return a PNG of the attention weights of all heads on `excerpt`, with a title."""
    # importing matplotlib takes a second
    from gpt.inspection.pictures import draw_heads, png
    from gpt.model.attention_maps import attend
    from gpt.model.ensemble import members_of
    from gpt.text.batches import to_torch

    attention = attend(members_of(model)[0], to_torch(excerpt))
    return png(
        draw_heads(attention, corpus.vocabulary.names_of(excerpt.tolist()), title), PICTURE_DPI
    )
