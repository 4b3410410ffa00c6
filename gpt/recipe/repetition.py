"""Measure how much a text repeats itself, as code does: a model gains by copying what came before.

An id is repeated if the ids before it occurred earlier in its window, and it followed them the last
time. An induction head predicts these ids (arXiv:2209.11895, "prefix matching").
"""

import math

import torch
from torch import Tensor

from gpt.evaluation.loss import unknown_cost
from gpt.model.transformer import GPT, cross_entropy
from gpt.text.batches import scored_windows
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids, Vocabulary

CONTEXT_CHARACTERS = 4  # length of the context that must occur again
CHANCE_WINDOWS = 64  # windows in which a context occurs again by chance, at most once
MIN_ENTROPY = 1e-3  # nats; avoids a division by 0 for a text of one character
MAX_SCORED_IDS = 60_000  # ids of val that are scored, evenly spread; the pilot scores as many
MUCH_REPEATED = 0.2  # fraction of ids; prose has 0.00 to 0.16, documentation and code 0.28 to 0.38


def repeats_much(corpus: Corpus, T: int) -> bool:
    """Return whether more than MUCH_REPEATED of val is repeated, in windows of T."""
    return repeated_part(corpus.val, T, context_of(corpus, T)) > MUCH_REPEATED


def context_of(corpus: Corpus, T: int) -> int:
    """Return the number of ids that must occur again before a repeated id.

    These are CONTEXT_CHARACTERS characters; more, up to half a window, if ids vary so little that
    contexts occur again by chance: n ids have about exp(n H) contexts, where H is their entropy.
    """
    per_character = len(corpus.val) / corpus.val_characters
    ids = torch.cat([y.flatten() for _, y in scored_windows(corpus.val, T, MAX_SCORED_IDS)])
    p = ids.bincount().double() / len(ids)  # (V,)
    entropy = float(torch.special.entr(p).sum())
    rare = math.log(CHANCE_WINDOWS * T) / max(entropy, MIN_ENTROPY)
    longest = max(1, T // 2)
    return min(max(round(CONTEXT_CHARACTERS * per_character), math.ceil(rare)), longest)


def repeated_part(ids: Ids, T: int, context: int) -> float:
    """Return the fraction of `ids` that are repeated after `context` ids, in windows of T."""
    found = [repeated(x, y, context) for x, y in scored_windows(ids, T, MAX_SCORED_IDS)]
    return sum(int(each.sum()) for each in found) / sum(each.numel() for each in found)


@torch.inference_mode()
def repeated_loss(model: GPT, ids: Ids, vocabulary: Vocabulary, context: int) -> float:
    """Return what repeated ids contribute to the val loss: their nats, over the number of all ids.

    For `context` see `repeated_part`.
    """
    device = next(model.parameters()).device
    total, scored = 0.0, 0
    model.eval()
    for x, y in scored_windows(ids, model.config.T, MAX_SCORED_IDS):
        found = repeated(x, y, context)
        hidden = model.hidden(x.to(device))[found.to(device)]  # (n, C)
        logits, targets = model.head(hidden), y[found].to(device)  # (n, V), (n,)
        total += cross_entropy(logits[None], targets[None], reduction="sum").item()
        total += unknown_cost(targets, vocabulary)
        scored += y.numel()
    return total / scored


def repeated(x: Tensor, y: Tensor, context: int) -> Tensor:
    """Return which of the targets `y` (B, T) of the inputs `x` (B, T) are repeated, as booleans."""
    found = torch.zeros(y.shape, dtype=torch.bool)
    for b, (inputs, targets) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        followed: dict[tuple[int, ...], int] = {}
        for t in range(context - 1, len(inputs)):
            last = tuple(inputs[t + 1 - context : t + 1])
            found[b, t] = followed.get(last) == targets[t]
            followed[last] = targets[t]
    return found
