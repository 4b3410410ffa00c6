"""Positions: attention sees a set, not a sequence, until it is told where each character stands.

Learned positions are added to the character's embedding; rotary ones turn its queries and keys.
"""

import torch
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.lessons.head import Head
from gpt.lessons.page import Page
from gpt.lessons.trained import Trained
from gpt.model.rotary import Rotary
from gpt.text.display import symbol


def add_positions(x: Tensor, positions: Tensor) -> Tensor:
    """The plain form: (B, T, C) characters + (T, C) places; the same character differs by place."""
    return x + positions[: x.shape[1]]


def shuffle_past(x: Tensor, seed: int) -> Tensor:
    """(B, T, ...) with all places but the last in another order."""
    past = torch.arange(x.shape[1] - 1)
    order = past.roll(1 + seed % max(1, len(past) - 1))  # never the order that it was
    return torch.cat([x[:, order], x[:, -1:]], dim=1)


def example(seed: int) -> tuple[Tensor, Head, Tensor]:
    """Noise (1, 8, 16), a head of size 6, and places (8, 16)."""
    torch.manual_seed(seed)
    return torch.randn(1, 8, 16), Head(16, 6), torch.randn(8, 16)


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Tell it."""
    x, head, places = example(seed)
    shuffled = shuffle_past(x, seed)
    page.say(
        """A head weighs the past by what it says, not by when it was said. Put the past in another
        order, and the last character hears exactly the same."""
    )
    page.check(
        "without positions the order of the past does not matter",
        head(x)[0][:, -1],
        head(shuffled)[0][:, -1],
    )
    encoder = Head(16, 6, causal=False)
    order = torch.randperm(8)
    page.check(
        "and without the mask: permuted in, permuted out",
        encoder(x[:, order])[0],
        encoder(x)[0][:, order],
    )
    page.say(
        "'dog bites man' is not 'man bites dog'. So each place gets a vector of its own, added:"
    )
    page.check_differ(
        "with positions added, it matters",
        head(add_positions(x, places))[0][:, -1],
        head(add_positions(shuffled, places))[0][:, -1],
    )
    rotary = Rotary(ModelConfig(T=8, C=16, n_head=1, head_size=6))
    q, k = torch.randn(2, 1, 1, 1, 6).expand(2, 1, 1, 8, 6)  # the same query and key everywhere
    scores = (rotary(q) @ rotary(k).transpose(-2, -1))[0, 0]  # (T, T)
    page.say(
        """Rotary positions add nothing: they turn each query and key by an angle that grows with
        its place, so that their product depends on how far apart the two stand. The scores of one
        query and one key, put at every pair of places:"""
    )
    names = [f"t={t}" for t in range(8)]
    page.table("query at (row), key at (column)", scores, names, names)
    page.check("the same at the same distance", scores[1:, 1:], scores[:-1, :-1])
    if trained is not None and len(trained.text) > 2:  # a past of one has no order
        before = trained.model(trained.ids)[0, -1].softmax(-1)
        after = trained.model(shuffle_past(trained.ids, seed))[0, -1].softmax(-1)
        page.say(trained.introduction())
        likely = before.topk(min(6, len(before))).indices
        page.table(
            "probability of the next character, with its past in order and shuffled",
            torch.stack([before[likely], after[likely]]),
            ["in order", "shuffled"],
            [symbol(trained.vocabulary.characters[i]) for i in likely],
        )
