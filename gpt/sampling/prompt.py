"""Prompts: characters that the vocabulary has, as ids."""

from gpt.errors import UsageError
from gpt.text.vocabulary import Vocabulary


def check_known(text: str, vocabulary: Vocabulary, advice: str = "leave them out") -> None:
    """Raises UsageError, with their list, if the text has characters outside the vocabulary."""
    if unknown := vocabulary.outside(text):
        listed = " ".join(ascii(c) if not c.isprintable() else c for c in unknown)
        raise UsageError(
            f"the text has characters outside the model's vocabulary: {listed}; {advice}"
        )


def check_prompt(prompt: str, vocabulary: Vocabulary, *, drop_unknown: bool = False) -> str:
    """The prompt, in characters of the vocabulary.

    Raises:
        UsageError: the prompt has characters outside it, unless they are to be dropped.
    """
    if drop_unknown:
        return "".join(c for c in prompt if c in vocabulary.characters)
    check_known(prompt, vocabulary, "leave them out (gpt sample: --unknown drop)")
    return prompt


def encode_prompt(prompt: str, vocabulary: Vocabulary) -> list[int]:
    """The prompt's ids; an empty one is a new line, or else the vocabulary's first character."""
    start = "\n" if "\n" in vocabulary.characters else vocabulary.characters[0]
    return vocabulary.encode(prompt or start).tolist()
