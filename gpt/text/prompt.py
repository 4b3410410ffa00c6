"""Prepare a prompt like the training text: normalise it, check its characters, encode it."""

import logging
import unicodedata
from collections import Counter
from collections.abc import Collection

from gpt.errors import UsageError, listed
from gpt.terminal import symbol
from gpt.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

LISTED_CHARACTERS = 20  # largest number of characters that a message lists


def prepare_prompt(
    prompt: str,
    vocabulary: Vocabulary,
    *,
    drop_unknown: bool = False,
    what: str = "the text",
    advice: str = "leave them out",
) -> str:
    """Normalise a prompt like the training text, and check that its characters have ids.

    With `drop_unknown`, remove characters outside the vocabulary instead, and log their number.

    Raises:
        UsageError: the prompt is not a str, or has characters without an id.
    """
    if not isinstance(prompt, str):
        raise UsageError(f"text: expected a str, got {prompt!r:.100}")
    prompt = normalized(prompt, vocabulary)
    if not drop_unknown:
        check_known(prompt, vocabulary, what, advice)
        return prompt
    outside = vocabulary.outside(prompt)
    if unknown := Counter(c for c in prompt if c in outside):
        notice = "dropped %d of %d characters, which are outside the model's vocabulary: %s"
        log.warning(notice, unknown.total(), len(prompt), listed_characters(unknown))
    return "".join(c for c in prompt if c not in unknown)


def normalized(text: str, vocabulary: Vocabulary) -> str:
    """Normalise a short text, such as a prompt.

    If `vocabulary` lacks characters of the text, use the Unicode normal form (NFC or NFD) with the
    fewest unknown characters: `é` is one character in most texts, and two in some.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if vocabulary.is_bytes or not vocabulary.outside(text):
        return text
    forms = [text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))]
    return min(forms, key=lambda each: len(vocabulary.outside(each)))


def check_known(
    text: str, vocabulary: Vocabulary, what: str = "the text", advice: str = "leave them out"
) -> None:
    """Raise UsageError if `text`, named `what` in the message, has characters without an id."""
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
