"""Characters from a model, one after the other, as they come."""

from collections.abc import Iterator

import torch

from gpt.device import generator
from gpt.errors import UsageError
from gpt.model.transformer import GPT
from gpt.sampling.decoding import choose
from gpt.text.vocabulary import Vocabulary


def check_known(text: str, vocabulary: Vocabulary, advice: str = "leave them out") -> None:
    """Raises UsageError, with their list, if the text has characters the model has never seen."""
    if unknown := vocabulary.unknown(text):
        listed = " ".join(ascii(c) if not c.isprintable() else c for c in unknown)
        raise UsageError(
            f"the text has characters outside the model's vocabulary: {listed}; {advice}"
        )


def check_prompt(prompt: str, vocabulary: Vocabulary, *, drop_unknown: bool = False) -> str:
    """The prompt, in characters that the model knows.

    Raises:
        UsageError: the prompt has characters that the model has never seen, unless they are
            to be dropped.
    """
    if drop_unknown:
        return "".join(c for c in prompt if c in vocabulary.characters)
    check_known(prompt, vocabulary, "leave them out, or use --unknown drop")
    return prompt


def encode_prompt(prompt: str, vocabulary: Vocabulary) -> list[int]:
    """The prompt's ids; an empty one is a new line, or else the vocabulary's first character."""
    start = "\n" if "\n" in vocabulary.characters else vocabulary.characters[0]
    return vocabulary.encode(prompt or start).tolist()


@torch.inference_mode()
def generate(
    model: GPT,
    vocabulary: Vocabulary,
    prompt: list[int],
    *,
    length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int,
    step: int = 0,
) -> Iterator[str]:
    """Yield `length` characters that follow the prompt's ids; each sees the last T before it.

    The draws follow from (seed, step) and are made on the CPU, so that they are the same on
    every device that computes the same logits.
    """
    device = next(model.parameters()).device
    draws = generator(seed, "sample", step)
    model.eval()
    T = model.config.T
    ids = prompt[-T:]
    for _ in range(length):
        logits = model(torch.tensor([ids], device=device))[0, -1]  # (V,)
        chosen = choose(logits.float().cpu(), draws, temperature, top_k)
        yield vocabulary.characters[chosen]
        ids = [*ids, chosen][-T:]
