"""Prompts: characters that the vocabulary has ids for."""

from collections.abc import Iterable

from gpt.errors import UsageError
from gpt.text.vocabulary import Vocabulary


def check_known(
    text: str, vocabulary: Vocabulary, advice: str = "leave them out", *, shared: bool = True
) -> None:
    """Raises UsageError, with their list, if the text has characters without an id.

    `shared`: whether the unknown id, if there is one, is one for all the others. (Not for
    surrogates, which are no characters: no text can be written with them.)
    """
    unknown = vocabulary.outside(text)
    if shared and vocabulary.unknown_id is not None:
        unknown = "".join(c for c in unknown if "\ud800" <= c <= "\udfff")
    if unknown:
        raise UsageError(
            f"the text has characters outside the model's vocabulary: {listed(unknown)}; {advice}"
        )


def check_prompt(prompt: str, vocabulary: Vocabulary, *, drop_unknown: bool = False) -> str:
    """The prompt, in characters that have an id.

    Raises:
        UsageError: the prompt has others, unless those without an id of their own are to be
            dropped.
    """
    if drop_unknown:
        outside = set(vocabulary.outside(prompt))
        return "".join(c for c in prompt if c not in outside)
    check_known(prompt, vocabulary, "leave them out (gpt sample: --unknown drop)")
    return prompt


def encode_prompt(prompt: str, vocabulary: Vocabulary) -> list[int]:
    """The prompt's ids; an empty one is a new line, or else the vocabulary's first character."""
    start = vocabulary.characters[0] if vocabulary.outside("\n") else "\n"
    return vocabulary.encode(prompt or start).tolist()


def listed(characters: Iterable[str]) -> str:
    """Characters one by one, those that cannot be printed spelled out."""
    return " ".join(c if c.isprintable() else ascii(c) for c in characters)
