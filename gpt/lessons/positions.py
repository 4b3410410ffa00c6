"""Positions: without them attention is permutation equivariant: a set goes in, not a sequence.

Absolute positions, learned or sinusoidal, are added to the token embedding. (Rotary positions
rotate queries and keys instead: the lesson `recipe`.)
"""

import copy

import torch
from torch import Tensor

from gpt.lessons.head import Head
from gpt.lessons.page import Page
from gpt.lessons.trained import Trained
from gpt.model.transformer import GPT, Block
from gpt.text.display import symbol


def add_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Embeddings (B, T, C) + positions (T or more, C), a vector for each position."""
    return x + positions[: x.shape[1]]


def sinusoids(T: int, C: int) -> Tensor:
    """(T, C): positions that need no training ("Attention Is All You Need", section 3.5).

    Channels 2i and 2i + 1 are the sine and cosine of t / 10000^(2i/C).
    """
    frequencies = 10000 ** (-torch.arange(0, C, 2) / C)
    angles = torch.arange(T)[:, None] * frequencies  # (T, C / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def permute_past(T: int, kept: int, seed: int) -> Tensor:
    """An order of T positions that permutes all but the last `kept`, and never leaves them all.

    Raises ValueError for a past of fewer than two positions, which has one order only.
    """
    if kept + 2 > T:
        raise ValueError(f"expected at least {kept + 2} positions, got {T}")
    past = torch.arange(T - kept)
    generator, order = torch.Generator().manual_seed(seed), past
    while order.equal(past):
        order = torch.randperm(len(past), generator=generator)
    return torch.cat([order, torch.arange(T - kept, T)])


def without_positions(model: GPT) -> GPT:
    """A copy of a model without positions, and without the key offset, which tells order too."""
    model = copy.deepcopy(model)
    model.position_embedding = None
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention.rotary, block.attention.key_offset = None, False
    return model


def predict(model: GPT, x: Tensor) -> Tensor:
    """Embeddings without positions (1, T, C) -> probabilities of the character after them (V,)."""
    if model.position_embedding is not None:
        x = add_positions(x, model.position_embedding.weight)
    for block in model.blocks:
        x = block(x)
    probabilities: Tensor = model.head(model.norm(x))[0, -1].softmax(-1)
    return probabilities


def example(seed: int) -> tuple[Tensor, Head, Tensor]:
    """Noise (1, 8, 16), a head of size 6, and positions (8, 16)."""
    torch.manual_seed(seed)
    return torch.randn(1, 8, 16), Head(16, 6), torch.randn(8, 16)


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    x, head, learned = example(seed)
    permuted = x[:, permute_past(8, 1, seed)]
    page.paragraph(
        """A head computes its weights from what the characters are, not from where they are: to
        attention the past is a **set**, not a **sequence**. With the past in another order, the
        output at the last position is the same. Without the causal mask attention is **permutation
        equivariant**: permuted inputs give the same outputs, permuted alike."""
    )
    page.check(
        "the last output, without positions: past in order = past permuted",
        head(x)[0][:, -1],
        head(permuted)[0][:, -1],
    )
    encoder = Head(16, 6, causal=False)
    order = torch.randperm(8)
    page.check(
        "no causal mask: outputs of permuted inputs = permuted outputs",
        encoder(x[:, order])[0],
        encoder(x)[0][:, order],
    )
    page.paragraph(
        """But 'dog bites man' is not 'man bites dog'. So each position gets a vector of its own, a
        **position embedding**, which is added to the token embedding. In GPT-2 and in this
        project's `classic` it is learned, as the token embedding is: a table of T rows."""
    )
    page.source(add_positions)
    page.check_differ(
        "the last output, with positions: past in order, past permuted",
        head(add_positions(x, learned))[0][:, -1],
        head(add_positions(permuted, learned))[0][:, -1],
    )
    page.paragraph(
        """The first transformer had **sinusoidal** positions, which need no training: each pair of
        channels is a clock hand, the first the fastest. The dot product of two such vectors depends
        only on how far apart they are:"""
    )
    page.source(sinusoids)
    fixed = sinusoids(8, 16)
    products = fixed @ fixed.T  # (T, T)
    names = [f"t={t}" for t in range(8)]
    page.table("dot products of sinusoidal positions", products, names, names)
    page.check("equal products at equal distance", products[1:, 1:], products[:-1, :-1])
    page.paragraph(
        """Both are **absolute**: they say where a character is. **Relative** positions say how far
        apart a query and a key are; the rotary ones, which most models now use, are in the lesson
        recipe."""
    )
    if trained is not None:
        explain_trained(page, seed, trained)
    outputs = [head(add_positions(version, learned[:1]))[0][:, -1] for version in (x, permuted)]
    page.exercise(
        """In add_positions write positions[:1] for positions[: x.shape[1]]: the same vector at
        every position. Does the order of the past matter to the last output?""",
        f"""No: past in order and past permuted differ by
        {float((outputs[0] - outputs[1]).abs().max()):.0e}, which is rounding, so the check that
        they differ fails. A vector that is the same everywhere says nothing of where a character
        is.""",
    )


def explain_trained(page: Page, seed: int, trained: Trained) -> None:
    """Permute the past of a trained model, with its positions and without."""
    model, T = trained.model, trained.ids.shape[1]
    kept = model.config.ngram
    if kept + 2 > T:
        trained.introduce(page)
        page.paragraph(
            f"""That is too short a text to permute its past: the last {kept} stay, and at least two
            before them, so {kept + 2} in all, are needed for another order."""
        )
        return
    bare = without_positions(model)
    x = bare.embed(trained.ids)  # (1, T, C)
    permuted = x[:, permute_past(T, kept, seed)]
    with_positions, without = (
        torch.stack([predict(m, x), predict(m, permuted)]) for m in (model, bare)
    )
    trained.introduce(page)
    page.paragraph(
        f"""Permuted are the embeddings of the first {T - kept} characters{
            f", each with those before it that its n-gram embedding sums, and the last {kept} stay"
            if kept > 1
            else ""
        }: what changes is the order alone. Then the same with the model's
        {model.config.positions} positions taken away{
            ", and the key offset, which tells order too," if model.config.key_offset else ""
        }."""
    )
    likely = with_positions[0].topk(min(6, with_positions.shape[1])).indices
    page.table(
        "predicted probability of the next character",
        torch.cat([with_positions, without])[:, likely],
        ["past in order", "past permuted", "no positions: in order", "no positions: permuted"],
        [symbol(trained.vocabulary.names[i]) for i in likely],
    )
    page.table(
        "total variation: half the sum of |difference|, from 0 (the same) to 1",
        [float((a - b).abs().sum() / 2) for a, b in (with_positions, without)],
        columns=["with positions", "without"],
    )
    page.check(
        "without positions, the last output of layer 1: past in order = past permuted",
        bare.blocks[0](x)[:, -1],
        bare.blocks[0](permuted)[:, -1],
    )
    if len(trained.blocks) > 1:
        page.paragraph(
            """From layer 2 on the order shows even without positions: the causal mask gives each
            character a past of its own, and so layer 1 another output, from which layer 2 learns
            where it is. Decoders can be trained with no positions at all (arXiv:2203.16634)."""
        )
