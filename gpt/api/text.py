"""Describe a text before training on it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt.api.resolve import Settings, Text, open_sources, prepared, resolve

if TYPE_CHECKING:
    from gpt.evaluation.text_report import TextReport


def describe(text: Text | Sequence[Text], settings: Settings = ()) -> "TextReport":
    """Read a text in the same way as training, and report what it contains.

    Args:
        text: see `train`.
        settings: changes of the settings in the section `data`; see `train`.

    Returns:
        A TextReport: sizes, characters, probable decoding errors and duplicates of the text, and
        the losses that simple models reach on it.

    Raises:
        ConfigError: a setting is wrong.
        TextError: the text cannot be read.
    """
    from gpt.evaluation.text_report import describe_text

    config = resolve(None, text, settings)
    sources = open_sources(config.data)
    corpus = in_characters = prepared(config, sources)
    plain = config.data.model_copy(update={"vocabulary": "characters", "max_vocabulary": None})
    if plain != config.data:
        readable = sources
        if config.data.vocabulary == "bytes":  # the files may be binary
            plain = plain.model_copy(update={"errors": "replace"})
            readable = open_sources(plain)
        in_characters = prepared(config.model_copy(update={"data": plain}), readable)
    return describe_text(sources, config.data, corpus, in_characters)
