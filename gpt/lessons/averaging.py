"""Averaging the past: the simplest way for a position to use the characters before it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.lessons.lesson_page import Page, names
from gpt.lessons.trained import Trained


def by_loop(x: Tensor) -> Tensor:
    """Average x (B, T, C) by a loop: row t of the result is the mean of rows 0 to t."""
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            out[b, t] = x[b, : t + 1].mean(dim=0)
    return out


def by_matmul(x: Tensor) -> Tensor:
    """Average rows 0 to t of x (B, T, C), for each t, by a product with triangular weights."""
    T = x.shape[1]
    weights = torch.tril(torch.ones(T, T))
    weights = weights / weights.sum(dim=1, keepdim=True)
    return weights @ x  # (T, T) @ (B, T, C) -> (B, T, C)


def by_softmax(x: Tensor) -> Tensor:
    """Average rows 0 to t of x (B, T, C), for each t, by a softmax of equal scores."""
    return causal_softmax(torch.zeros(x.shape[1], x.shape[1])) @ x


def causal_softmax(scores: Tensor) -> Tensor:
    """Turn scores (..., T, T) into weights: row t is a softmax over positions 0 to t."""
    future = torch.tril(torch.ones(scores.shape[-2:])) == 0
    return F.softmax(scores.masked_fill(future, float("-inf")), dim=-1)


def example(seed: int) -> Tensor:
    """Return random x of shape (B, T, C) = (4, 8, 2)."""
    torch.manual_seed(seed)
    return torch.randn(4, 8, 2)


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    x = example(seed)
    B, T, C = x.shape
    page.section("A loop")
    page.paragraph(f"""A text is a **sequence** of **tokens**; here a token is a character. To
        predict the next token, each position may use the tokens up to it, and none after it: the
        model is **causal**. The simplest way is to average the past. Here is a **batch** of B = {B}
        sequences of T = {T} tokens. Each token is a vector of C = {C} **channels**, filled with
        noise. This is the first sequence, and its averages.""")
    page.source(by_loop)
    page.table(
        "each position's vector x, and the mean of the vectors up to it",
        torch.cat([x[0], by_loop(x)[0]], dim=1),
        names("t", T),
        ["x0", "x1", "mean0", "mean1"],
    )
    page.paragraph("""An average ignores order: it is a **bag of words** (of characters, here).
        The last average stays the same if the positions change places:""")
    page.check(
        "the last average, in order = reversed", by_loop(x)[:, -1], by_loop(x.flip(1))[:, -1]
    )
    page.section("One matrix product")
    page.paragraph("""A loop over positions is slow. One matrix product does the same. A lower
        triangular matrix of ones adds up the past. With each row divided by its sum, the matrix
        averages the past.""")
    page.source(by_matmul)
    triangle = torch.ones(T, T).tril()
    weights = triangle / triangle.sum(dim=1, keepdim=True)
    page.by_position("torch.tril(torch.ones(T, T))", triangle.long())
    page.check("loop = triangular matrix product", by_loop(x), by_matmul(x))
    page.paragraph(f"""`@` multiplies the last two dimensions: here (T, T) @ (T, C). x has one
        dimension more, the batch, and the weights have none. So they are **broadcast**: used for
        each of the {B} sequences.""")
    shapes = " -> ".join(str(tuple(shape)) for shape in (x.shape, (weights @ x).shape))
    page.formula("shapes", f"{tuple(weights.shape)} @ {shapes}")
    each = torch.stack([weights @ sequence for sequence in x])
    page.check("broadcast = a product for each sequence", weights @ x, each)
    page.section("Masked softmax")
    page.paragraph("""The third way begins with **scores**. A score says how relevant a key position
        (column) is to a query position (row); here all scores are zero. The **causal mask** sets
        the scores of the future to -inf. **Softmax** takes exp(score) divided by the sum of its
        row, so no weight is negative and each row sums to 1. The future has weight
        exp(-inf) = 0.""")
    page.source(causal_softmax, by_softmax)
    future = triangle == 0
    masked = torch.zeros(T, T).masked_fill(future, float("-inf"))
    page.by_position("the masked scores: query position (row), key position (column)", masked)
    weights = causal_softmax(torch.zeros(T, T))
    page.by_position("the attention weights: softmax of each row", weights, future)
    page.check("loop = masked softmax", by_loop(x), by_softmax(x))
    page.paragraph("""`dim=-1` is the last dimension, the keys, so that the weights of each query
        sum to 1. With `dim=-2` each column would sum to 1, and the weights of a query would change
        with the queries after it.""")
    page.check("the sum of each row = 1", weights.sum(dim=-1), torch.ones(T))
    page.paragraph("""These **attention weights** are equal because the scores are equal. If the
        scores depend on the tokens, each position attends to some of the past more than to the
        rest. That is **attention**, the next lesson.""")
    suffix = x[0].flip(0).cumsum(0).flip(0) / torch.arange(T, 0, -1).unsqueeze(1)
    first, last = (", ".join(f"{value:.4f}" for value in row) for row in suffix[[0, -1]])
    page.exercise(
        """In `by_matmul` write `torch.triu` in place of `torch.tril`. What are rows t=0 and t=7 of
        the first sequence now, and which check fails?""",
        f"""Each row now averages its own position and the future. Row t=0 is the mean of all eight
        vectors, ({first}), as row t=7 was before. Row t=7 is its own vector, ({last}). The check
        "loop = triangular matrix product" fails. A mask turned the wrong way is a common
        mistake.""",
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """Compare each trained head's output with the plain average of the head's value vectors."""
    distances = []
    for _, q, k, v in trained.heads():
        mean = by_softmax(v[0])
        out = causal_softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5) @ v
        distances.append((out - mean).norm(dim=(-2, -1)) / mean.norm(dim=(-2, -1)))
    page.table(
        "distance of each head's output from the average of its values, relative to the length of "
        "the average (0 if the head only averages)",
        torch.cat(distances),
        trained.layers,
        trained.columns,
    )
