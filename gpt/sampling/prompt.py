"""Check that a prompt's characters are in the vocabulary, or convert them to ones that are."""

import unicodedata
from collections.abc import Collection

from gpt.errors import UsageError, listed
from gpt.text.vocabulary import Vocabulary

LISTED_CHARACTERS = 20  # characters that a message lists; it counts the others
ASCII_QUOTES = dict.fromkeys("\u2018\u2019\u201a\u201b\u2039\u203a", "'") | dict.fromkeys(
    "\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'
)


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


def with_known_characters(text: str, vocabulary: Vocabulary) -> tuple[str, list[str]]:
    """Replace characters outside the vocabulary if it has the same ones in another form.

    The whole text is converted to NFC or NFD if fewer of its characters are then outside.
    Typographic quotes that are outside become ASCII quotes if the vocabulary has those. If the
    vocabulary has an unknown id, the text stays as it is. A notice tells each kind of replacement.
    """
    notices: list[str] = []
    if vocabulary.unknown_id is not None:
        return text, notices
    for form in ("NFC", "NFD"):
        converted = unicodedata.normalize(form, text)
        if len(vocabulary.outside(converted)) < len(vocabulary.outside(text)):
            text = converted
            notices.append(f"the text is converted to {form}, the form of the model's characters")
    known = {c for c in "'\"" if not vocabulary.outside(c)}
    if quotes := [c for c in vocabulary.outside(text) if ASCII_QUOTES.get(c) in known]:
        text = text.translate({ord(c): ASCII_QUOTES[c] for c in quotes})
        notices.append(
            f"typographic quotes become ASCII quotes, which the model has: {' '.join(quotes)}"
        )
    return text, notices


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
