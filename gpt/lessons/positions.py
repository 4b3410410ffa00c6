"""Positions: without them attention is permutation equivariant: a set goes in, not a sequence.

Learned positions are added to the token embedding; rotary ones rotate queries and keys.
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
    """Learned positions: embeddings (B, T, C) + positions (T, C), a vector for each position."""
    return x + positions[: x.shape[1]]


def shuffle_past(x: Tensor, seed: int) -> Tensor:
    """(B, T, ...) with all positions but the last in another order."""
    past = torch.arange(x.shape[1] - 1)
    order = past.roll(1 + seed % max(1, len(past) - 1))  # never the same order
    return torch.cat([x[:, order], x[:, -1:]], dim=1)


def example(seed: int) -> tuple[Tensor, Head, Tensor]:
    """Noise (1, 8, 16), a head of size 6, and positions (8, 16)."""
    torch.manual_seed(seed)
    return torch.randn(1, 8, 16), Head(16, 6), torch.randn(8, 16)


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    x, head, learned = example(seed)
    shuffled = shuffle_past(x, seed)
    page.paragraph(
        """A head computes its weights from what the characters are, not from where they are. With
        the past in another order, the output at the last position is exactly the same."""
    )
    page.check(
        "without positions the order of the past does not matter",
        head(x)[0][:, -1],
        head(shuffled)[0][:, -1],
    )
    encoder = Head(16, 6, causal=False)
    order = torch.randperm(8)
    page.check(
        "and without the causal mask: permuted inputs give permuted outputs",
        encoder(x[:, order])[0],
        encoder(x)[0][:, order],
    )
    page.paragraph(
        "'dog bites man' is not 'man bites dog'. So a learned vector for each position is added:"
    )
    page.check_differ(
        "with positions added, the order matters",
        head(add_positions(x, learned))[0][:, -1],
        head(add_positions(shuffled, learned))[0][:, -1],
    )
    rotary = Rotary(ModelConfig(T=8, C=16, n_head=1, head_size=6))
    q, k = torch.randn(2, 1, 1, 1, 6).expand(2, 1, 1, 8, 6)  # the same query and key everywhere
    scores = (rotary(q) @ rotary(k).transpose(-2, -1))[0, 0]  # (T, T)
    page.paragraph(
        """Rotary positions add nothing: they rotate each query and key by an angle proportional to
        its position, so that their dot product depends on the distance between the two. The scores
        of one query and one key, at every pair of positions:"""
    )
    names = [f"t={t}" for t in range(8)]
    page.table("scores: query position (row), key position (column)", scores, names, names)
    page.check("equal scores at equal distance", scores[1:, 1:], scores[:-1, :-1])
    if trained is not None and len(trained.text) > 2:  # a past of one has no order
        before = trained.model(trained.ids)[0, -1].softmax(-1)
        after = trained.model(shuffle_past(trained.ids, seed))[0, -1].softmax(-1)
        trained.introduce(page)
        likely = before.topk(min(6, len(before))).indices
        page.table(
            "predicted probability of the next character, with the past in order and shuffled",
            torch.stack([before[likely], after[likely]]),
            ["in order", "shuffled"],
            [symbol(trained.vocabulary.characters[i]) for i in likely],
        )
