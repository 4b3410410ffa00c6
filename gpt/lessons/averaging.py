"""The past, averaged: the simplest way for a position to use the characters before it.

Three ways to one result. The third is attention already, with scores that are all zero.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.lessons.page import Page
from gpt.lessons.trained import Trained


def by_loop(x: Tensor) -> Tensor:
    """(B, T, C) -> (B, T, C): row t is the mean of rows 0 to t."""
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            out[b, t] = x[b, : t + 1].mean(dim=0)
    return out


def by_matmul(x: Tensor) -> Tensor:
    """The same by one product with a (T, T) matrix: a triangle of ones, each row over its sum."""
    T = x.shape[1]
    weights = torch.tril(torch.ones(T, T))
    weights = weights / weights.sum(dim=1, keepdim=True)
    return weights @ x  # (T, T) @ (B, T, C) -> (B, T, C)


def by_softmax(x: Tensor) -> Tensor:
    """The same with weights from a softmax of scores: zero for the past, -inf for the future."""
    return causal_softmax(torch.zeros(x.shape[1], x.shape[1])) @ x


def causal_softmax(scores: Tensor) -> Tensor:
    """(..., T, T) scores -> weights: each row a softmax over its past alone."""
    future = torch.tril(torch.ones(scores.shape[-2:])) == 0
    return F.softmax(scores.masked_fill(future, float("-inf")), dim=-1)


def example(seed: int) -> Tensor:
    """(B, T, C) = (4, 8, 2) of noise."""
    torch.manual_seed(seed)
    return torch.randn(4, 8, 2)


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    x = example(seed)
    B, T, C = x.shape
    page.paragraph(
        f"""To predict the next character, each position may use the characters up to it, and none
        after it: the model is causal. The simplest way is to average the past. Here is a batch of
        B = {B} texts of T = {T} characters, each character a vector of C = {C} channels of noise;
        this is the first text, and its averages."""
    )
    positions = [f"t={t}" for t in range(T)]
    both = torch.cat([x[0], by_loop(x)[0]], dim=1)
    page.table(
        "each position's vector x, and the mean of the vectors up to it",
        both,
        positions,
        ["x", "x", "mean", "mean"],
    )
    page.paragraph(
        """A loop over positions is slow. The same averages are one matrix product with a lower
        triangular matrix of ones, each row divided by its sum. And softmax makes rows of equal
        weights out of equal scores, once the scores of the future are masked with -inf."""
    )
    page.table(
        "the weights: query position (row), key position (column)",
        causal_softmax(torch.zeros(T, T)),
        positions,
        positions,
    )
    page.check("loop = triangular matrix product", by_loop(x), by_matmul(x))
    page.check("loop = masked softmax", by_loop(x), by_softmax(x))
    page.paragraph(
        """In the softmax form the weights need not be equal: let the scores depend on the
        characters, and each position attends to some of them more than to others. That is
        attention."""
    )
    if trained is not None:
        rows, columns = trained.names()
        distances = []
        for _, q, k, v in trained.heads():
            mean = causal_softmax(torch.zeros(q.shape[-2], q.shape[-2])) @ v
            out = causal_softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5) @ v
            distances.append((out - mean).norm(dim=(-2, -1)) / mean.norm(dim=(-2, -1)))
        trained.introduce(page)
        page.table(
            "distance of each head's output from the average of its values, relative to that",
            torch.cat(distances),
            rows,
            columns,
        )
