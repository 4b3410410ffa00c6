"""Check that a prompt's characters are in the vocabulary, and encode them."""

import unicodedata
from collections.abc import Collection

from gpt.errors import UsageError, listed
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


def banned_ids(characters: str, vocabulary: Vocabulary) -> list[int]:
    """Return the ids that are never sampled: those of `characters`, and the unknown id.

    Raises:
        UsageError: the vocabulary lacks a character, nothing would be left to sample, or the
            model predicts bytes and a character is not ASCII.
    """
    if vocabulary.is_bytes and (shared := [c for c in characters if not c.isascii()]):
        raise UsageError(
            f"the characters to ban: expected ASCII, because this model predicts bytes and other "
            f"characters share theirs, got {listed_characters(shared)}"
        )
    advice = "they are never sampled, so leave them out"
    check_known(characters, vocabulary, advice, what="the list of characters to ban", shared=False)
    unknown = set() if vocabulary.unknown_id is None else {vocabulary.unknown_id}
    banned = unknown.union(vocabulary.encode(characters).tolist())
    if len(banned) == len(vocabulary):
        raise UsageError("the characters to ban: got all of the model's vocabulary; ban fewer")
    return sorted(banned)


def listed_characters(characters: Collection[str]) -> str:
    """List characters; name those that show nothing by themselves, such as spaces."""

    def shown(character: str) -> str:
        if character.isprintable() and unicodedata.category(character)[0] not in "MZ":
            return character
        name = unicodedata.name(character, "")
        return f"{character!a} ({name})" if name else ascii(character)

    return listed([shown(character) for character in characters], LISTED_CHARACTERS, " ")
