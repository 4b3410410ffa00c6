"""Check that a prompt's characters are in the vocabulary, and encode them."""

from collections.abc import Collection

from gpt.errors import UsageError, listed
from gpt.text.display import symbol
from gpt.text.vocabulary import Vocabulary

LISTED_CHARACTERS = 20  # most characters that a message lists; the others are counted


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
