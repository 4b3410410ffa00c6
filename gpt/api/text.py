"""What is in a text, before anything is trained on it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt.api.resolve import Settings, Text, open_sources, prepared, resolve, with_kept_input

if TYPE_CHECKING:
    from gpt.evaluation.text_report import TextReport


def describe(text: Text | Sequence[Text], settings: Settings = ()) -> "TextReport":
    """What is in a text, as training would read it: size, characters, damage, what to beat.

    Args:
        text: as for `train`.
        settings: changes of `data`, as for `train`.

    Raises:
        ConfigError, TextError: see `train`.
    """
    from gpt.evaluation.text_report import describe_text

    config = with_kept_input(resolve(None, text, settings))
    sources = open_sources(config.data)
    corpus = in_characters = prepared(config, sources)
    plain = config.data.model_copy(update={"vocabulary": "characters", "max_vocabulary": None})
    if plain != config.data:
        readable = sources
        if config.data.vocabulary == "bytes":  # of any file, also of one that is not text
            plain = plain.model_copy(update={"errors": "replace"})
            readable = open_sources(plain)
        in_characters = prepared(config.model_copy(update={"data": plain}), readable)
    return describe_text(sources, config.data, corpus, in_characters)
