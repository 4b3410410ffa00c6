"""The lesson `averaging`. From: Karpathy, "Let's build GPT"."""

# The bigram model sees one character. To use more, let each position see its own character and all
# earlier ones. Later characters stay hidden, because the model must predict them: the model is
# **causal**. The simplest way to combine the visible characters is to average them.
#
# ## Vectors
# The example of the next lessons: B = 2 windows of T = 7 characters, 'returns' and 'the set'. Each
# character is a **vector** of C = 15 numbers, its **channels**. For now, the numbers are random.
# Equal characters have equal vectors: see r at positions 0 and 4. B, T and C differ, so a **shape**
# shows which axis is which: **batch**, **time**, channels.
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpt.lessons.ladder import climb, example, python_docs
from gpt.lessons.render import check, heat_map, table

STEPS = 300  # training steps for each row of the ladder
x, names = example()
B, T, C = x.shape
print("x:", tuple(x.shape), "= (B, T, C)")
heat_map("channels 0 to 2", x[0, :, :3].T, ["c0", "c1", "c2"], names)


# ## Three ways to average the past
def by_loop(x: Tensor) -> Tensor:
    """Row t of the result is the mean of rows 0 to t of x (B, T, C)."""
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            out[b, t] = x[b, : t + 1].mean(dim=0)
    return out


def by_matmul(x: Tensor) -> Tensor:
    """Average the past of x by a product with triangular weights."""
    T = x.shape[1]
    weights = torch.tril(torch.ones(T, T))  # ones on and below the diagonal
    weights = weights / weights.sum(dim=1, keepdim=True)
    return weights @ x  # (T, T) @ (B, T, C) -> (B, T, C)


triangle = torch.tril(torch.ones(T, T))
weights = triangle / triangle.sum(dim=1, keepdim=True)
heat_map("each row divided by its sum: the weights of an average", weights)
check("loop = matrix product", by_matmul(x), by_loop(x))


# Row t of `weights` says how much of each position (column) goes into position t. `@` multiplies
# the matrices in the last two dimensions. The weights are **broadcast**: used for each of the B
# windows. The third way begins with **scores**, which say how relevant a position (column) is to
# another (row). Here all scores are 0. `masked_fill` sets the scores of later positions to -inf:
# the **causal mask**. Softmax turns each row into weights with sum 1, a **distribution**. The
# weight of each later position is 0, because exp(-inf) = 0.
def by_softmax(x: Tensor) -> Tensor:
    """Average the past of x by a softmax of masked scores."""
    T = x.shape[1]
    future = torch.tril(torch.ones(T, T)) == 0
    scores = torch.zeros(T, T).masked_fill(future, float("-inf"))
    return scores.softmax(dim=-1) @ x


scores = torch.zeros(T, T).masked_fill(triangle == 0, float("-inf"))
heat_map("the masked scores", scores)
soft = scores.softmax(dim=-1)
check("softmax of each row = the weights", soft, weights)
check("each row sums to 1", soft.sum(dim=-1), torch.ones(T))
check("loop = masked softmax", by_softmax(x), by_loop(x))

# `softmax(dim=-1)` runs along the last dimension, over the columns of each row. For a matrix,
# `dim=1` is the same. With a batch, (B, T, T), only `dim=-1` still means the columns; `dim=1` would
# be the rows.
check("(T, T): dim=1 = dim=-1", scores.softmax(dim=1), soft)
batch = torch.stack([scores, scores])  # (B, T, T)
sums = [batch.softmax(dim=dim).sum(dim=-1)[0, 0] for dim in (-1, 1)]
table("(B, T, T): sum of row 0", {"softmax": sums}, ["dim=-1", "dim=1"])

# An average ignores order: it is a **bag of words** (of characters, here).
last, of_reversed = by_softmax(x)[:, -1], by_softmax(x.flip(1))[:, -1]
check("the last average, text reversed = in order", of_reversed, last)

# Karpathy's notebook averages a random x, (B, T, C) = (4, 8, 2), drawn with seed 1337. Its figures
# for the first window:
torch.manual_seed(1337)
xbow = by_loop(torch.randn(4, 8, 2))  # bow: bag of words
table("xbow[0]", {"c0": xbow[0, :, 0], "c1": xbow[0, :, 1]})

# ## The second row of the ladder
# Each character of the text gets a vector of C = 64 parameters, a row of the table `tokens`: its
# **embedding**. The average is *added* to x, so that the character itself is not lost: x + f(x) is
# called a **residual connection** (lesson `block`). A **linear layer**, a product with a matrix of
# parameters (lesson `layers`), makes logits.
from gpt.lessons.ladder import Residual, SmallModel  # show its code

V = len(python_docs()[2])
rows = {"average": lambda: SmallModel(V, Residual(by_softmax))}
losses = climb(rows, STEPS)


# The average does not lower the loss (2.3335; bigram 2.3312): it weighs all of the past alike,
# whatever the characters are. If the scores are not 0 but depend on the data, each position takes
# more from some positions than from others. That is **attention**, the next lesson.
#
# ## Exercises
# 1. Let each row of `by_matmul` average itself and the future. What are rows 0 and 6 of the result?
#    Which check fails?
#
# ```diff
# -    weights = torch.tril(torch.ones(T, T))  # ones on and below the diagonal
# +    weights = torch.triu(torch.ones(T, T))
# ```
#
# 2. Write the average without a matrix.
def by_cumsum(x: Tensor) -> Tensor:
    """Average the past of x (B, T, C) by x.cumsum(dim=1)."""


check("by_cumsum = loop", by_cumsum(x), by_loop(x))

# Answers
#
# 1. Row 0 is the mean of all seven vectors of x, and row 6 is the last of these vectors. The check
#    "loop = matrix product" fails. A mask turned the wrong way is a common mistake.
#
# 2. Divide the sum of rows 0 to t by their number:
#
# ```python
#     numbers = torch.arange(1, x.shape[1] + 1)
#     return x.cumsum(dim=1) / numbers[:, None]
# ```
