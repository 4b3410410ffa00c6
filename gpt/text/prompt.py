"""Prepare a prompt like the training text: normalise it, check its characters, encode it."""

import logging
from collections import Counter
from collections.abc import Collection

from gpt.config.schema import DataConfig
from gpt.errors import UsageError, listed
from gpt.text.display import symbol
from gpt.text.normalizer import normalized
from gpt.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

LISTED_CHARACTERS = 20  # largest number of characters in a message; it counts the others


def prepare_prompt(
    prompt: str,
    vocabulary: Vocabulary,
    data: DataConfig,
    *,
    drop_unknown: bool = False,
    advice: str = "leave them out",
) -> str:
    """Normalise a prompt like the training text, and check that its characters have ids.

    Args:
        prompt: any text.
        vocabulary: the vocabulary of the model.
        data: the settings with which the training text was read.
        drop_unknown: whether to remove characters outside the vocabulary, and log their number.
        advice: the end of the error message, which says what to do about unknown characters.

    Raises:
        UsageError: the prompt is not a str, or has characters without an id.
    """
    prompt = normalize_prompt(prompt, vocabulary, data)
    if not drop_unknown:
        check_known(prompt, vocabulary, advice)
        return prompt
    outside = vocabulary.outside(prompt)
    if unknown := Counter(c for c in prompt if c in outside):
        notice = "dropped %d of %d characters, which are outside the model's vocabulary: %s"
        log.warning(notice, unknown.total(), len(prompt), listed_characters(unknown))
    return "".join(c for c in prompt if c not in unknown)


def normalize_prompt(text: str, vocabulary: Vocabulary, data: DataConfig) -> str:
    """Return `text`, normalised like the training text; raise UsageError if it is not a str."""
    if not isinstance(text, str):
        raise UsageError(f"text: expected a str, got {text!r:.100}")
    return normalized(text, data, vocabulary)


def check_known(
    text: str,
    vocabulary: Vocabulary,
    advice: str = "leave them out",
    *,
    what: str = "the text",
) -> None:
    """Raise UsageError if `text` has characters outside the vocabulary.

    Args:
        text: the text to check.
        vocabulary: the known characters.
        advice: what to do about the error; ends the message.
        what: a name of the text; begins the message.
    """
    if unknown := vocabulary.outside(text):
        unknown = listed_characters(unknown)
        raise UsageError(
            f"{what} has characters outside the model's vocabulary: {unknown}; {advice}"
        )


def encode_prompt(prompt: str, vocabulary: Vocabulary) -> list[int]:
    """Return the ids of `prompt`.

    An empty prompt becomes a newline, or the vocabulary's first character if it has no newline.
    """
    start = vocabulary.characters[0] if vocabulary.outside("\n") else "\n"
    return vocabulary.encode(prompt or start).tolist()


def listed_characters(characters: Collection[str]) -> str:
    """Return a list of characters for a message, with symbols or escapes for invisible ones."""
    return listed([symbol(c) for c in characters], LISTED_CHARACTERS, " ")
