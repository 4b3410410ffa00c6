"""From logits to one id: small pure functions, each (V,) -> (V,) or (V,) -> id."""

import torch
from torch import Tensor


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide by the temperature: below 1 the likely become likelier, above 1 less so."""
    return (logits - logits.max()).double() / temperature  # in float64, any temperature will do


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest logits; the others become -inf. Of equals at the edge, all stay."""
    if k >= logits.shape[-1]:
        return logits
    kth = torch.topk(logits, k).values[-1]
    return logits.masked_fill(logits < kth, float("-inf"))


def choose(
    logits: Tensor, generator: torch.Generator, temperature: float = 1.0, top_k: int | None = None
) -> int:
    """One id drawn from the softmax of the logits (V,); temperature 0 takes the likeliest."""
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    probabilities = apply_temperature(logits, temperature).softmax(-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))
