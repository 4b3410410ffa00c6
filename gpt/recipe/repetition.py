"""Whether a text repeats itself, as code does: what a model gains by looking up the last time."""

import math

import torch
from torch import Tensor

from gpt.evaluation.loss import unknown_cost
from gpt.model.transformer import GPT, cross_entropy
from gpt.text.batches import scored_windows
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids, Vocabulary

CONTEXT = 4  # characters: what followed as many the last time is repeated
BY_CHANCE = 64  # windows: more, if in fewer the same would come again by chance alone
LEAST_ENTROPY = 1e-3  # nats: of a text of one character it is 0
SCORED = 60_000  # ids of val at most, evenly spread: of the pilot, too
MUCH = 0.2  # of all ids: prose has 0.00 to 0.16, documentation and code 0.28 to 0.38


def repeats_much(corpus: Corpus, T: int) -> bool:
    """Whether in windows of T so much of val follows a context as it did the last time there."""
    return repeated_part(corpus.val, T, context_of(corpus, T)) > MUCH


def context_of(corpus: Corpus, T: int) -> int:
    """Ids after which one is repeated if it followed as many the last time: CONTEXT characters.

    More of them, up to half a window, where ids vary so little that by chance alone any context
    comes again within windows of T: n ids have about exp(n H) contexts, with H their entropy.
    """
    per_character = len(corpus.val) / corpus.val_characters
    ids = torch.cat([y.flatten() for _, y in scored_windows(corpus.val, T, SCORED)])
    p = ids.bincount().double() / len(ids)  # (V,)
    entropy = float(torch.special.entr(p).sum())
    rare = math.log(BY_CHANCE * T) / max(entropy, LEAST_ENTROPY)
    longest = max(1, T // 2)
    return min(max(round(CONTEXT * per_character), math.ceil(rare)), longest)


def repeated_part(ids: Ids, T: int, context: int) -> float:
    """Of the ids scored, those that follow so many as they did the last time, in a window.

    It is what an induction head gets right (arXiv:2209.11895, "prefix matching").
    """
    found = [repeated(x, y, context) for x, y in scored_windows(ids, T, SCORED)]
    return sum(int(each.sum()) for each in found) / sum(each.numel() for each in found)


@torch.inference_mode()
def repeated_loss(model: GPT, ids: Ids, vocabulary: Vocabulary, context: int) -> float:
    """What the ids that `repeated_part` counts add to the val loss: in nats per id, of all."""
    device = next(model.parameters()).device
    total, scored = 0.0, 0
    model.eval()
    for x, y in scored_windows(ids, model.config.T, SCORED):
        found = repeated(x, y, context)
        hidden = model.hidden(x.to(device))[found.to(device)]  # (n, C)
        logits, targets = model.head(hidden), y[found].to(device)  # (n, V), (n,)
        total += cross_entropy(logits[None], targets[None], reduction="sum").item()
        total += unknown_cost(targets, vocabulary)
        scored += y.numel()
    return total / scored


def repeated(x: Tensor, y: Tensor, context: int) -> Tensor:
    """(B, T) ids and those that follow -> (B, T) bool: which do so as the last time."""
    found = torch.zeros(y.shape, dtype=torch.bool)
    for b, (before, after) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        followed: dict[tuple[int, ...], int] = {}
        for t in range(context - 1, len(before)):
            last = tuple(before[t + 1 - context : t + 1])
            found[b, t] = followed.get(last) == after[t]
            followed[last] = after[t]
    return found
