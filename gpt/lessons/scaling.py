"""Why scores are divided by sqrt(head_size) (arXiv:1706.03762, section 3.2.1, footnote 4)."""

import math

import torch
from torch import Tensor

from gpt.lessons import head
from gpt.lessons.averaging import causal_softmax
from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained


def raw_scores(q: Tensor, k: Tensor) -> Tensor:
    """Return scores (..., T, T) of queries and keys, each (..., T, head_size), without scaling."""
    return q @ k.transpose(-2, -1)


def scaled_scores(q: Tensor, k: Tensor) -> Tensor:
    """Return `raw_scores` / sqrt(head_size). Noise of variance 1 has scores of variance 1."""
    return raw_scores(q, k) * q.shape[-1] ** -0.5


def variance_of_products(dimension: int, pairs: int, seed: int) -> tuple[float, float]:
    """Return the variances of q.k and q.k / sqrt(dimension) over `pairs` random pairs q, k."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, pairs, dimension, generator=generator)
    products = (q * k).sum(dim=-1)
    return float(products.var()), float((products * dimension**-0.5).var())


def entropy(weights: Tensor) -> Tensor:
    """Return the entropy in bits of weights (..., T): 0 if one-hot, log2 T if all are equal."""
    return torch.special.entr(weights).sum(dim=-1) / math.log(2)


def max_entropy(T: int) -> float:
    """Return the mean entropy in bits of uniform causal weights (T, T). It is the maximum."""
    return float(torch.arange(1, T + 1).log2().mean())


def jacobian(scores: Tensor) -> Tensor:
    """Return softmax's Jacobian (T, T) at scores (T,): row i has the derivatives of weight i."""
    weights = scores.softmax(dim=-1)
    return torch.diag(weights) - torch.outer(weights, weights)


def example(seed: int) -> tuple[Tensor, Tensor]:
    """Return random queries and keys, each (B, T, head_size) = (4, 8, 16)."""
    x, _ = head.example(seed)
    B, T, _ = x.shape
    return torch.randn(B, T, 16), torch.randn(B, T, 16)


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    q, k = example(seed)
    page.section("The variance of a score")
    page.paragraph("""The score of a query and a key is their **dot product**: the sum of head_size
        products. Here queries and keys are noise of variance 1, with head_size 16. Each product
        has variance 1, and variances of independent numbers add up: to 16. Why divide by the square
        root? Dividing numbers by c divides their variance by c^2, so to divide the variance by 16,
        divide the scores by 4.""")
    page.formula("variance", "Var(x / c) = Var(x) / c^2")
    page.source(raw_scores, scaled_scores)
    raw, scaled = raw_scores(q, k), scaled_scores(q, k)
    page.check("Var(q.k / 4) = Var(q.k) / 16", scaled.var(), raw.var() / 16)
    variances = [q.var(), k.var(), raw.var(), scaled.var()]
    page.table("variance", variances, columns=["q", "k", "q.k", "scaled"])
    dimensions = [5, 16, 100, 400]
    page.table(
        "variance of q.k over 1,000 pairs, by dimension",
        torch.tensor([variance_of_products(d, 1000, seed) for d in dimensions]).T,
        ["q.k", "q.k / sqrt(dimension)"],
        [str(d) for d in dimensions],
    )
    page.section("Why does it matter?")
    page.paragraph("""Softmax is diffuse only while its scores differ little.
        Large differences make it nearly **one-hot**: all weight goes to the largest
        score. Five scores, times 1, 8 and 32:""")
    scores = torch.tensor([0.1, -0.2, 0.3, -0.2, 0.5])
    rows = ["scores", "8 x scores", "32 x scores"]
    multiples = torch.stack([scores, 8 * scores, 32 * scores])
    page.table("softmax", multiples.softmax(-1), rows)
    page.paragraph(f"""The **entropy** of the weights says how undecided they are. It is 0 bits if
        one weight is 1, and log2(n) if all n weights are equal: here {math.log2(5):.4f} bits.""")
    page.table("entropy of the weights (bits)", entropy(multiples.softmax(-1)), columns=rows)
    page.paragraph("""A sharp softmax does not learn. The gradient of the scores is that of the
        weights times softmax's **Jacobian**, diag(w) - w w^T, which says how each weight w changes
        with each score. If w is nearly one-hot, the Jacobian is nearly 0. So a head has to begin
        diffuse, with scores of variance 1, and becomes as sharp as is useful by training.""")
    page.source(jacobian)
    norms = [jacobian(multiple).norm() for multiple in multiples]
    page.table("norm of softmax's Jacobian", norms, columns=rows)
    torchs = torch.func.jacrev(lambda s: s.softmax(-1))(scores)
    page.check("the Jacobian by hand = torch's", jacobian(scores), torchs)
    raw, scaled = (form(2 * q, k).var() for form in (raw_scores, scaled_scores))
    page.exercise(
        """In `example` double the queries: `2 * torch.randn(B, T, 16)`. What are the variances of
        q, of q.k and of the scaled scores?""",
        f"""Doubling the queries multiplies these variances by four, to {(2 * q).var():.4f},
        {raw:.4f} and {scaled:.4f}; that of k stays the same. Dividing by sqrt(head_size) corrects
        for the head's size, not for large queries. QK norm, in the lesson `recipe`, corrects for
        large queries.""",
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """Show the variance of scores and the entropy of weights, without and with scaling."""
    T = trained.ids.shape[1]
    largest, past = max_entropy(T), torch.ones(T, T).tril() == 1
    page.paragraph(f"""Row t of the attention weights has t + 1 keys. The tables show the mean
        entropy of the {T} rows, which is at most {largest:.4f} bits.""")
    for form, scores_of in (("without", raw_scores), ("with", scaled_scores)):
        scores = torch.cat([scores_of(q, k) for _, q, k, _ in trained.heads()])  # (layers, H, T, T)
        shape = trained.layers, trained.columns
        variances = scores[:, :, past].var(dim=-1, correction=0)
        page.table(f"variance of the scores, {form} the scale", variances, *shape)
        bits = entropy(causal_softmax(scores)).mean(dim=-1)
        page.table(f"entropy of the attention weights (bits), {form} the scale", bits, *shape)
