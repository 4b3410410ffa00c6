"""Normalisation: bring numbers to mean 0 and variance 1, over the batch or over the channels.

BatchNorm (arXiv:1502.03167) normalises the columns, over the examples of a batch; so the output
for an example depends on the others, and running statistics replace theirs in evaluation mode.
LayerNorm (arXiv:1607.06450) normalises the rows, over the channels of one example; it needs
neither. `correction` 1 is the unbiased variance of the notebooks, 0 that of torch's layers.
"""

import torch
from torch import Tensor

from gpt.lessons.page import Page
from gpt.lessons.trained import Trained

EPS = 1e-5


class BatchNorm:
    """(B, C) -> (B, C): each column to mean 0 and variance 1, then scaled and shifted."""

    def __init__(self, channels: int, *, momentum: float = 0.1, correction: int = 1) -> None:
        self.gamma, self.beta = torch.ones(channels), torch.zeros(channels)
        self.running_mean, self.running_var = torch.zeros(channels), torch.ones(channels)
        self.momentum, self.correction, self.training = momentum, correction, True

    def __call__(self, x: Tensor) -> Tensor:
        """(B, C) -> (B, C); in training it also updates the running mean and variance."""
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = x.mean(dim=0), x.var(dim=0, correction=self.correction)
            self._update(mean, x.var(dim=0, correction=1))
        return self.gamma * (x - mean) / torch.sqrt(var + EPS) + self.beta

    def _update(self, mean: Tensor, var: Tensor) -> None:
        """Move the running averages a little towards this batch; the variance is the unbiased."""
        self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean
        self.running_var = (1 - self.momentum) * self.running_var + self.momentum * var


class LayerNorm:
    """(..., C) -> (..., C): each row to mean 0 and variance 1, then scaled and shifted."""

    def __init__(self, channels: int, *, correction: int = 1) -> None:
        self.gamma, self.beta = torch.ones(channels), torch.zeros(channels)
        self.correction = correction

    def __call__(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True, correction=self.correction)
        return self.gamma * (x - mean) / torch.sqrt(var + EPS) + self.beta


def take_apart(norm: torch.nn.LayerNorm) -> LayerNorm:
    """The production model's LayerNorm by hand, with its weights."""
    by_hand = LayerNorm(norm.normalized_shape[0], correction=0)
    by_hand.gamma, by_hand.beta = norm.weight, norm.bias
    return by_hand


def example(seed: int) -> Tensor:
    """(B, C) = (32, 100) of noise."""
    torch.manual_seed(seed)
    return torch.randn(32, 100)


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    x = example(seed)
    batch_norm, layer_norm = BatchNorm(100), LayerNorm(100)
    by_batch, by_layer = batch_norm(x), layer_norm(x)
    page.paragraph(
        """Activations drift through many layers: too large, too small, off centre. To normalise is
        to subtract the mean and divide by the standard deviation. The question is over which
        numbers to take them. Here are 32 examples of 100 channels."""
    )
    means = [[t[:, 0].mean(), t[:, 0].std(), t[0].mean(), t[0].std()] for t in (by_batch, by_layer)]
    page.table(
        "mean and standard deviation of the output",
        torch.tensor(means),
        ["BatchNorm", "LayerNorm"],
        ["column 0: mean", "std", "row 0: mean", "std"],
    )
    page.paragraph(
        """BatchNorm normalises each column: a channel over all examples. LayerNorm normalises each
        row: one example over its channels. A language model uses LayerNorm: an example must not
        depend on which others are in its batch, nor a position on those after it."""
    )
    torch_batch, torch_layer = torch.nn.BatchNorm1d(100), torch.nn.LayerNorm(100)
    ours = BatchNorm(100, correction=0)
    page.check("BatchNorm by hand = torch's, in training", ours(x), torch_batch(x))
    ours.training = False
    page.check("and in evaluation, from the running statistics", ours(x), torch_batch.eval()(x))
    page.check("LayerNorm by hand = torch's", LayerNorm(100, correction=0)(x), torch_layer(x))
    page.check("LayerNorm does not depend on the other examples", by_layer[:1], layer_norm(x[:1]))
    page.check_differ("BatchNorm does", by_batch[:2], BatchNorm(100)(x[:2]))
    if trained is not None:
        trained.introduce(page)
        before = trained.streams
        rows, _ = trained.names()
        table = [
            [s.mean(), s.std(), n.mean(), n.std()]
            for s, n in zip(before, trained.inputs, strict=True)
        ]
        page.table(
            "the residual stream before each attention, and after its LayerNorm",
            torch.tensor(table),
            rows,
            ["mean", "std", "norm: mean", "std"],
        )
        page.check(
            "LayerNorm by hand = the production model's",
            take_apart(trained.blocks[-1].attention_norm)(before[-1]),
            trained.inputs[-1],
        )
