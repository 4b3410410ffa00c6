"""Check that a prompt's characters are in the vocabulary, and encode them."""

from collections.abc import Collection

from gpt.errors import UsageError, listed
from gpt.text.display import symbol
from gpt.text.vocabulary import Vocabulary

LISTED_CHARACTERS = 20  # characters that a message lists; it counts the others


def check_known(
    text: str,
    vocabulary: Vocabulary,
    advice: str = "leave them out",
    *,
    what: str = "the text",
    shared: bool = True,
) -> None:
    """Raise UsageError, which says `what` and `advice`, if characters of `text` have no id.

    With `shared`, the unknown id serves, except for surrogates, which no text can contain.
    """
    unknown = vocabulary.outside(text)
    if shared and vocabulary.unknown_id is not None:
        unknown = "".join(c for c in unknown if "\ud800" <= c <= "\udfff")
    if unknown:
        unknown = listed_characters(unknown)
        raise UsageError(
            f"{what} has characters outside the model's vocabulary: {unknown}; {advice}"
        )


def encode_prompt(prompt: str, vocabulary: Vocabulary) -> list[int]:
    """Return the ids of `prompt`; if it is empty, of a newline or the first known character."""
    start = vocabulary.characters[0] if vocabulary.outside("\n") else "\n"
    return vocabulary.encode(prompt or start).tolist()


def listed_characters(characters: Collection[str]) -> str:
    """List characters, those that show nothing by a sign or escape."""
    return listed([symbol(c) for c in characters], LISTED_CHARACTERS, " ")
