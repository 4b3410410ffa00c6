"""The lesson `normalization`. From: BatchNorm (arXiv:1502.03167), LayerNorm (arXiv:1607.06450)."""

# Through many layers numbers become too large, too small or off centre. To **normalise** is to
# subtract the mean and to divide by the standard deviation (the root of the variance). The question
# is: over which numbers? Here are 32 examples (rows) of 100 channels (columns). **BatchNorm**
# normalises each column, a channel over all examples. **LayerNorm** normalises each row, an example
# over its channels.
import torch
from torch import Tensor, nn

from gpt.lessons.render import check, check_differ, table


class BatchNorm:
    """Normalise each column of x (B, C)."""

    def __init__(self, C: int, eps: float = 1e-5, correction: int = 1):
        self.eps, self.momentum, self.training = eps, 0.1, True
        self.correction = correction  # the variance divides by n - correction
        self.gamma = torch.ones(C, requires_grad=True)  # trained
        self.beta = torch.zeros(C, requires_grad=True)  # trained
        self.running_mean = torch.zeros(C)
        self.running_var = torch.ones(C)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise x (B, C); in training, update running statistics."""
        mean, var = self.running_mean, self.running_var  # (C,)
        if self.training:
            mean = x.mean(dim=0)  # over the batch: (B, C) -> (C,)
            var = x.var(dim=0, correction=self.correction)
            with torch.no_grad():
                unbiased = x.var(dim=0, correction=1)
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(unbiased, self.momentum)
        normal = (x - mean) / (var + self.eps).sqrt()
        self.out = self.gamma * normal + self.beta  # stored for inspection
        return self.out

    def parameters(self) -> list[Tensor]:
        """Return the trained tensors."""
        return [self.gamma, self.beta]


class RowNorm(BatchNorm):
    """LayerNorm: normalise each row of x (..., C)."""

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise x, in the same way in training and evaluation."""
        mean = x.mean(dim=-1, keepdim=True)  # over channels: (..., 1)
        var = x.var(dim=-1, keepdim=True, correction=self.correction)
        normal = (x - mean) / (var + self.eps).sqrt()
        return self.gamma * normal + self.beta


torch.manual_seed(1337)
x = torch.randn(32, 100)
batch_norm, layer_norm = BatchNorm(100), RowNorm(100)
outputs = {"x": x, "BatchNorm": batch_norm(x), "LayerNorm": layer_norm(x)}
rows = {}
for name, y in outputs.items():
    rows[name] = [y[:, 0].mean(), y[:, 0].std(), y[0].mean(), y[0].std()]
table("column 0 and row 0", rows, ["col mean", "std", "row mean", "std"])

# A language model uses LayerNorm, because its output at a position must not depend on later
# positions or on other examples in the batch.
two, of_all = BatchNorm(100)(x[:2]), BatchNorm(100)(x)[:2]
check("LayerNorm: alone = in batch", layer_norm(x[:1]), layer_norm(x)[:1])
check_differ("BatchNorm: two rows alone, in their batch", two, of_all)


# **gamma** and **beta**, a number for each channel, let training choose another deviation and mean.
# **eps** is added to the variance: without it a row of equal numbers would become 0 / 0, NaN.
#
# In evaluation there may be one example only, whose columns have no variance. So BatchNorm keeps
# **running statistics** for evaluation: a mean and a variance of each column. In training, each
# batch moves them a tenth (`momentum`) of the way to the mean and variance of the batch:
# `lerp_(mean, 0.1)`. The update is under `torch.no_grad()`, so that no gradient flows through it.
# Otherwise the statistics would keep the **graph** of each batch: what torch stores for gradients.
# `backward` frees the graph, so the next `backward`, which needs it again, raises an error:
class LeakyNorm(BatchNorm):
    """Subtract a running mean, updated without `torch.no_grad()`."""

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise x (B, C)."""
        if self.training:
            mean = x.mean(dim=0)
            self.running_mean = 0.9 * self.running_mean + 0.1 * mean
        return x - self.running_mean


for norm in (BatchNorm(100), LeakyNorm(100)):
    inputs = x.clone().requires_grad_()
    norm(inputs).sum().backward()  # frees the graph of this batch
    norm.training = False
    kept = norm.running_mean.requires_grad
    try:
        norm(inputs).sum().backward()
        outcome = "backward works"
    except RuntimeError as error:
        outcome = str(error)[:36]
    print(f"{type(norm).__name__}: keeps a graph: {kept}; {outcome}")

# Running statistics are not in `parameters()`: they are not trained. Compare with torch, whose
# layers compute the variance with n, not n - 1 (`correction=0`):
ours, theirs = BatchNorm(100, correction=0), nn.BatchNorm1d(100)
check("BatchNorm = torch's, in training", ours(x), theirs(x))
ours.training = False
check("BatchNorm = torch's, in evaluation", ours(x), theirs.eval()(x))
check("in evaluation, one alone = in its batch", ours(x[:1]), ours(x)[:1])
biased = RowNorm(100, correction=0)(x)
check("LayerNorm = torch's", biased, nn.LayerNorm(100)(x))
print("trained:", [tuple(p.shape) for p in ours.parameters()])


# ## Exercises
# 1. Let `correction` be 0 by default. What becomes of the last number of the first table?
#
# ```diff
# -    def __init__(self, C: int, eps: float = 1e-5, correction: int = 1):
# +    def __init__(self, C: int, eps: float = 1e-5, correction: int = 0):
# ```
#
# 2. Write RMSNorm (arXiv:1910.07467), which many newer models use: it subtracts no mean and has no
#    beta.
def rms_norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Divide each row of x (..., C) by the root of its mean square."""


expected = nn.functional.rms_norm(x, (100,), eps=1e-5)
check("rms_norm = torch's", rms_norm(x), expected)

# Answers
#
# 1. It becomes 1.0050 = sqrt(100 / 99): `RowNorm` now divides the sum of squares by 100, but
#    `std` in the table divides it by 99.
#
# 2. eps is added to the mean of the squares:
#
# ```python
#     return x / ((x**2).mean(dim=-1, keepdim=True) + eps).sqrt()
# ```
