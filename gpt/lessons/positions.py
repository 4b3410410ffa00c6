"""Positions, without which attention treats its input as a set instead of a sequence."""

import torch
from torch import Tensor

from gpt.lessons.head import Head
from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained


def add_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Add the first T rows of the table `positions` (rows, C) to embeddings x (B, T, C)."""
    return x + positions[: x.shape[1]]


def sinusoids(T: int, C: int) -> Tensor:
    """Return fixed position vectors (T, C) ("Attention Is All You Need", section 3.5).

    Channels 2i and 2i + 1 are the sine and cosine of t / 10000^(2i/C).
    """
    frequencies = 10000 ** (-torch.arange(0, C, 2) / C)
    angles = torch.arange(T)[:, None] * frequencies  # (T, C / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def permute_past(T: int, kept: int, seed: int) -> Tensor:
    """Return positions 0 to T - 1 in a random order; the last `kept` stay in place.

    At least one position moves, so `kept` must be at most T - 2.
    """
    past = torch.arange(T - kept)
    generator, order = torch.Generator().manual_seed(seed), past
    while order.equal(past):
        order = torch.randperm(len(past), generator=generator)
    return torch.cat([order, torch.arange(T - kept, T)])


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    torch.manual_seed(seed)
    x, head, learned = torch.randn(1, 8, 16), Head(16, 6), torch.randn(8, 16)
    permuted = x[:, permute_past(8, 1, seed)]

    def last_outputs(positions: Tensor) -> list[Tensor]:
        """Add `positions` to `x` and to `permuted`; return `head`'s output at the last position."""
        return [head(add_positions(version, positions))[0][:, -1] for version in (x, permuted)]

    page.paragraph("""A head computes its weights from what the characters are, not from where they
        are: to attention the past is a **set**, not a **sequence**. If the past is in another
        order, the output at the last position is the same. Without the causal mask attention is
        **permutation equivariant**: permuted inputs give the same outputs, permuted alike.""")
    claim = "the last output, without positions: past in order = past permuted"
    page.check(claim, head(x)[0][:, -1], head(permuted)[0][:, -1])
    encoder, order = Head(16, 6, causal=False), torch.randperm(8)
    claim = "no causal mask: outputs of permuted inputs = permuted outputs"
    page.check(claim, encoder(x[:, order])[0], encoder(x)[0][:, order])
    page.paragraph("""But 'dog bites man' is not 'man bites dog'. So each position gets a vector of
        its own, a **position embedding**, which is added to the token embedding. In GPT-2 and in
        this project's `classic` it is learned, like the token embedding: a table of T rows.""")
    page.source(add_positions)
    claim = "the last output, with positions: past in order, past permuted"
    page.check_differ(claim, *last_outputs(learned))
    page.paragraph("""The first transformer had **sinusoidal** positions, which need no training.
        Each pair of channels turns like the hand of a clock, and the first pair turns fastest. The
        dot product of two position vectors depends only on how far apart they are:""")
    page.source(sinusoids)
    fixed = sinusoids(8, 16)
    products = fixed @ fixed.T  # (T, T)
    page.by_position("dot products of sinusoidal positions", products)
    page.check("equal products at equal distance", products[1:, 1:], products[:-1, :-1])
    page.paragraph("""Both are **absolute**: they say where a character is. **Relative** positions
        say how far apart a query and a key are. Most models now use rotary positions (lesson
        `recipe`). (A decoder of several layers can be trained without positions, arXiv:2203.16634.
        The causal mask gives each character a past of its own, so what the first layer adds depends
        on the position.)""")
    in_order, out_of_order = last_outputs(learned[:1])
    difference = float((in_order - out_of_order).abs().max())
    page.exercise(
        """In add_positions write positions[:1] for positions[: x.shape[1]]: the same vector at
        every position. Does the order of the past matter to the last output?""",
        f"""No: past in order and past permuted differ by {difference:.0e}, which is rounding,
        so the check that they differ fails. The same vector everywhere says nothing about where a
        character is.""",
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """Show how the trained model's prediction changes if the past of the text is permuted."""
    T, kept = trained.ids.shape[1], trained.model.config.ngram
    if kept + 2 > T:
        page.paragraph(f"""This text is too short to permute its past: that needs {kept + 2}
            characters, of which the last {kept} keep their places.""")
        return
    permuted = trained.ids[:, permute_past(T, kept, trained.seed)]
    in_order, out_of_order = trained.model(torch.cat([trained.ids, permuted]))[:, -1].softmax(-1)
    page.paragraph(f"""The order of all characters but the last {kept} is changed. How do the
        predictions change?""")
    likely, columns = trained.likeliest(in_order)
    page.table(
        "predicted probability of the next character",
        {"past in order": in_order[likely], "past permuted": out_of_order[likely]},
        columns=columns,
    )
