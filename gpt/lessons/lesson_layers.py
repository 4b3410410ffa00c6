"""The lesson `layers`. From: Raschka, "Build a Large Language Model (From Scratch)", chapter 3."""

# The head in this lesson, from Raschka's book, can be checked by calculator. It has no mask. Its
# tokens are six words, each a vector of d_in = 3 numbers. Three matrices of (3, 2) make queries,
# keys and values of d_out = 2 numbers. (In a GPT, the outputs of all heads together usually have
# the size of x. Here d_in and d_out differ, so that shapes are easy to tell.) Seed 123 gives the
# book's figures: after `torch.manual_seed(123)`, numbers drawn in the same order are the same.
import torch
from torch import Tensor, nn

from gpt.lessons.ladder import Head, attend
from gpt.lessons.render import check, check_differ, heat_map, table

words = ["Your", "journey", "starts", "with", "one", "step"]
channels = [
    [0.43, 0.55, 0.57, 0.22, 0.77, 0.05],
    [0.15, 0.87, 0.85, 0.58, 0.25, 0.80],
    [0.89, 0.66, 0.64, 0.33, 0.10, 0.55],
]
X = torch.tensor(channels).T  # (6, 3): a row for each word
torch.manual_seed(123)
W_q, W_k, W_v = (torch.rand(3, 2) for _ in range(3))
qkv = ["q0", "q1", "k0", "k1", "v0", "v1"]
heat_map("matrices", torch.cat([W_q, W_k, W_v], 1), ["0", "1", "2"], qkv)
Q, K, V = X @ W_q, X @ W_k, X @ W_v  # (6, 3) @ (3, 2) -> (6, 2)
heat_map("queries, keys, values", torch.cat([Q, K, V], 1), words, qkv)

# Take the word 'journey'. Its score with itself is its q . k, and its scores with all words are a
# row of the matrix of scores. Divide this row by sqrt(d_out) = sqrt(2); softmax turns it into
# weights. The sum of all values, each times its weight, is the **context vector** of 'journey'. All
# keys and values are needed for this one vector.
print(f"'journey' with itself: {Q[1] @ K[1]:.4f}")
scores = Q @ K.T  # (6, 2) @ (2, 6) -> (6, 6): every query with every key
heat_map("all scores: query (row), key (column)", scores, words, words)
weights = (scores / 2**0.5).softmax(dim=-1)
heat_map("weights of 'journey'", weights[1:2], ["journey"], words)
context = weights @ V  # (6, 6) @ (6, 2) -> (6, 2)
heat_map("context vectors", context.T, ["c0", "c1"], words)


# ## As a module
# An `nn.Module` collects parameters. `__init__` makes them, and `forward` runs when the module is
# called. An `nn.Parameter` is in `parameters()`, which an optimizer trains, and in `state_dict()`,
# which a **checkpoint** (a trained model on disk) stores. A parameter has `requires_grad=True`:
# `backward` computes its gradient. The matrices above have `requires_grad=False`: they are frozen.
# X is frozen, too, but in a GPT x is an embedding, which is trained.
class SelfAttention(nn.Module):
    """One head without a mask: three matrices (d_in, d_out)."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.W_q = nn.Parameter(torch.rand(d_in, d_out))
        self.W_k = nn.Parameter(torch.rand(d_in, d_out))
        self.W_v = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., T, d_in) to context vectors (..., T, d_out)."""
        q, k, v = x @ self.W_q, x @ self.W_k, x @ self.W_v
        return attend(q, k, v)[0]


torch.manual_seed(123)
by_hand = SelfAttention(3, 2)
check("SelfAttention = the steps above", by_hand(X), context)
by_hand(X).sum().backward()
print(f"grad: W_q {by_hand.W_q.grad is not None}, X {X.grad is not None}")


# ## With linear layers
# `nn.Linear(d_in, d_out)` maps tensors of any shape `(*, d_in)` to `(*, d_out)`. It keeps its
# matrix transposed, (d_out, d_in). A **bias** (`bias=True`, here an option for q, k and v) adds a
# trained vector; GPT-2 has biases, most later models do not. The book's seed for this class is 789:
class LinearAttention(nn.Module):
    """One head without a mask, made of linear layers."""

    def __init__(self, d_in: int, d_out: int, bias: bool = False) -> None:
        super().__init__()
        self.W_q = nn.Linear(d_in, d_out, bias=bias)
        self.W_k = nn.Linear(d_in, d_out, bias=bias)
        self.W_v = nn.Linear(d_in, d_out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., T, d_in) to context vectors (..., T, d_out)."""
        return attend(self.W_q(x), self.W_k(x), self.W_v(x))[0]


torch.manual_seed(789)
linear = LinearAttention(3, 2)
heat_map("context vectors", linear(X).T, ["c0", "c1"], words)
for name, matrix in by_hand.named_parameters():
    getattr(linear, name).weight.data = matrix.data.T
check("same matrices: linear = by hand", linear(X), by_hand(X))

# The two classes differ only in their initial weights. `torch.rand` draws from 0 to 1. `nn.Linear`
# draws from -a to a, where a = 1 / sqrt(d_in). **Variance** is the mean squared distance from the
# mean. For the weights of `nn.Linear` it is a^2 / 3 = 1 / (3 d_in). An output is a sum of d_in
# products, so inputs of variance 1 give outputs of variance 1 / 3: smaller than the inputs, but the
# same for every d_in. Scores of two such outputs, divided by sqrt(hs), have a variance of about 1/3
# x 1/3 (lesson `scaling`): the scores of a new head are small.
torch.manual_seed(1337)
noise, head = torch.randn(4, 8, 32), Head(32, 16)  # as in the lesson `head`
q, k = head.query(noise), head.key(noise)
new_scores = q @ k.transpose(-2, -1) / 16**0.5
variances = [noise.var(), q.var(), new_scores.var()]
table("variance", {"": variances}, ["x", "q", "scores / sqrt(hs)"])

# Beware of a class that divides by the root of a *global* `d_k` = 2, not by the root of the size of
# its keys. Its results are right only if d_out is 2. They are wrong for keys of size 5:
d_k = 2  # the global variable
q3, k3 = torch.randn(2, 6, 5)  # keys of size 5
right, slip = q3 @ k3.T / 5**0.5, q3 @ k3.T / d_k**0.5
check_differ("scores, divided by sqrt(5) and by sqrt(d_k)", right, slip)


# ## Exercises
# 1. Do not divide: which weight of 'journey' grows most, and which checks fail?
#
# ```diff
# -weights = (scores / 2**0.5).softmax(dim=-1)
# +weights = scores.softmax(dim=-1)
# ```
#
# 2. Compute one context vector without a matrix of weights.
def context_vector(i: int) -> Tensor:
    """Return the context vector (2,) of word i, from Q[i], K and V."""


check("context_vector(1) = row 1", context_vector(1), context[1])

# Answers
#
# 1. The largest weight, that of 'journey' itself, grows most, from 0.2264 to 0.2507, and the
#    smallest, that of 'one', shrinks to 0.0687: softmax sees larger differences. The check
#    "SelfAttention = the steps above" fails.
#
# 2. One row of each step:
#
# ```python
#     return (K @ Q[i] / 2**0.5).softmax(dim=-1) @ V
# ```
