"""Normalisation: bring numbers to mean 0 and variance 1, over the batch or over the channels.

The parameter `correction` is that of `torch.var`. With 1, the variance is unbiased, as in the
notebooks that this lesson follows. With 0, it is biased, as in torch's layers.
"""

import torch
from torch import Tensor, nn

from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained


class BatchNorm:
    """BatchNorm: normalise each column of x (B, C) to mean 0, variance 1, then scale and shift."""

    def __init__(
        self, channels: int, eps: float = 1e-5, momentum: float = 0.1, correction: int = 1
    ) -> None:
        self.gamma = torch.ones(channels)  # trained
        self.beta = torch.zeros(channels)  # trained
        self.running_mean = torch.zeros(channels)
        self.running_var = torch.ones(channels)
        self.eps, self.momentum = eps, momentum
        self.correction, self.training = correction, True

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise x (B, C); in training, also update the running mean and variance."""
        mean, var = self.running_mean, self.running_var  # (C,)
        if self.training:
            mean = x.mean(dim=0)  # over the batch: (B, C) -> (C,)
            var = x.var(dim=0, correction=self.correction)
            unbiased = x.var(dim=0, correction=1)
            # a fraction of the way from the old value to the new
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
        x = (x - mean) / torch.sqrt(var + self.eps)
        return self.gamma * x + self.beta  # (B, C)

    def parameters(self) -> list[Tensor]:
        """Return the trained parameters, gamma and beta. Running statistics are not trained."""
        return [self.gamma, self.beta]


class LayerNorm:
    """LayerNorm: normalise each row of x (..., C) to mean 0, variance 1, then scale and shift."""

    def __init__(self, channels: int, eps: float = 1e-5, correction: int = 1) -> None:
        self.gamma = torch.ones(channels)
        self.beta = torch.zeros(channels)
        self.eps, self.correction = eps, correction

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise x (..., C). Training and evaluation do not differ."""
        mean = x.mean(dim=-1, keepdim=True)  # over channels: (..., 1)
        var = x.var(dim=-1, keepdim=True, correction=self.correction)
        x = (x - mean) / torch.sqrt(var + self.eps)
        return self.gamma * x + self.beta  # (..., C)

    def parameters(self) -> list[Tensor]:
        """Return the trained parameters, gamma and beta."""
        return [self.gamma, self.beta]


def statistics(x: Tensor) -> list[Tensor]:
    """Return mean and standard deviation of column 0 of x (B, C), then those of row 0."""
    return [x[:, 0].mean(), x[:, 0].std(), x[0].mean(), x[0].std()]


def example(seed: int) -> Tensor:
    """Return random x of shape (B, C) = (32, 100)."""
    torch.manual_seed(seed)
    return torch.randn(32, 100)


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    x = example(seed)
    layer_norm = LayerNorm(100)
    by_batch, by_layer = BatchNorm(100)(x), layer_norm(x)
    page.section("Columns or rows")
    page.paragraph("""Activations drift through many layers: they become too large, too small, or
        off centre. To **normalise** is to subtract the mean and to divide by the standard
        deviation. The question is over which numbers to compute these two. Here are 32 examples
        (rows) of 100 channels (columns). **BatchNorm** normalises each column, a channel over all
        examples. **LayerNorm** normalises each row, an example over its channels.""")
    page.source(BatchNorm, LayerNorm)
    page.table(
        "mean and standard deviation of column 0 (a channel) and of row 0 (an example)",
        [statistics(form) for form in (x, by_batch, by_layer)],
        ["x", "BatchNorm", "LayerNorm"],
        ["column: mean", "std", "row: mean", "std"],
    )
    page.paragraph("""A language model uses LayerNorm: an example must not depend on the others in
        its batch, nor a position on those after it. (Many newer models use RMSNorm,
        arXiv:1910.07467: LayerNorm without the mean and without beta.)""")
    page.check("LayerNorm of row 0 alone = of row 0 in its batch", layer_norm(x[:1]), by_layer[:1])
    claim = "BatchNorm of two rows alone and in their batch"
    page.check_differ(claim, BatchNorm(100)(x[:2]), by_batch[:2])
    page.section("gamma, beta, eps and running statistics")
    page.paragraph("""The next layer may need another mean and variance than 0 and 1. So each
        channel is multiplied by **gamma**, and **beta** is added. Both have a
        number for each channel. They are `parameters()`, which training changes; at first gamma is
        1 and beta is 0. **eps**, 1e-5,
        is added to the variance. Without it, a row of equal numbers, whose variance is 0, would
        become 0 / 0, which is NaN.""")
    page.paragraph("""Evaluation may have a single example, whose columns have no variance. So
        BatchNorm keeps **running statistics** in training. Each batch moves the old mean and
        variance a tenth (`momentum`) of the way to its own. Evaluation uses these. They are not
        parameters: no gradient changes them.""")
    page.paragraph("""The notebooks divide by the unbiased standard deviation (`correction` 1),
        torch's layers by the biased one (0). With `correction` 0, both forms equal torch's:""")
    ours, theirs = BatchNorm(100, correction=0), nn.BatchNorm1d(100)
    page.check("BatchNorm by hand = torch's, in training", ours(x), theirs(x))
    ours.training = False
    page.check("BatchNorm by hand = torch's, in evaluation", ours(x), theirs.eval()(x))
    page.check("in evaluation an example alone = the same in its batch", ours(x[:1]), ours(x)[:1])
    biased = LayerNorm(100, correction=0)(x)
    page.check("LayerNorm by hand = torch's", biased, nn.LayerNorm(100)(x))
    page.exercise(
        """In LayerNorm.__init__ let `correction` be 0 by default. In the first table, what becomes
        of the last number, the standard deviation of row 0?""",
        f"""{float(biased[0].std()):.4f} = sqrt(100 / 99): x is divided by the biased standard
        deviation, the root of the sum of squares over 100, and `std` in the table is the unbiased
        one, over 99.""",
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """Show the residual stream's mean and standard deviation before and after LayerNorm."""
    page.table(
        "the residual stream before each attention, and after its LayerNorm",
        [
            [before.mean(), before.std(), after.mean(), after.std()]
            for before, after in zip(trained.streams, trained.inputs, strict=True)
        ],
        trained.layers,
        ["mean", "std", "norm: mean", "std"],
    )
    norm = trained.blocks[-1].attention_norm
    by_hand = LayerNorm(norm.normalized_shape[0], eps=norm.eps, correction=0)
    by_hand.gamma, by_hand.beta = norm.weight, norm.bias
    claim = "LayerNorm by hand = the production model's"
    page.check(claim, by_hand(trained.streams[-1]), trained.inputs[-1])
