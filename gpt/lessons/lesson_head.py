"""The lesson `head`. From: Karpathy, "Let's build GPT"; arXiv:1706.03762; 3Blue1Brown."""

# An average weighs all of the past alike. In a **head** of attention each position makes three
# vectors from its x: a **query** asks for what the position needs, a **key** offers what it
# contains, and a **value** carries what it passes on. The **score** of a query and a key is their
# **dot product**: the sum of the products of their numbers, large if the two match.
#
# $$\mathrm{softmax}(Q K^T / \sqrt{d_k}) V$$
#
# Each row of Q, K and V is a query, key or value. (Elsewhere V is the number of distinct
# characters.) K is transposed so that each row of Q meets each column of K^T. $d_k$, here hs
# (head_size), is the size of a query and of a key: these sizes must be equal. A value may have
# another size. The square root is explained in the lesson `scaling`.
#
# ## The example: (B, T, C) = (2, 7, 15), hs = 5
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons import ladder
from gpt.lessons.ladder import Residual, SmallModel, climb
from gpt.lessons.render import check, heat_map

STEPS = 300  # training steps for each row of the ladder
x, names = ladder.example()
B, T, C = x.shape
hs = 5
torch.manual_seed(1337)
query, key, value = (nn.Linear(C, hs, bias=False) for _ in range(3))
q, k, v = query(x), key(x), value(x)  # (B, T, C) -> (B, T, hs) each
scores = q @ k.transpose(-2, -1)  # (B, T, hs) @ (B, hs, T) -> (B, T, T)
print("q, k, v:", tuple(q.shape), " scores:", tuple(scores.shape))

# `nn.Linear(C, hs)` multiplies each vector by a matrix of parameters (lesson `layers`): $q_t = W_q
# x_t$. The score in row t, column s is the dot product of $q_t$ and $k_s$. `transpose(-2, -1)`
# swaps the last two dimensions and leaves the batch alone. Each window has a matrix (T, T) of its
# own; windows never mix. (3Blue1Brown draws all of this transposed, with a column for each query.)
check("score (6, 2) = W_q x_6 . W_k x_2", scores[0, 6, 2], q[0, 6] @ k[0, 2])
alone = torch.stack([query(row) @ key(row).T for row in x])
check("each window alone = the batch", scores, alone)

# Divide the scores by sqrt(hs). The mask and the softmax are those of the lesson `averaging`.
from gpt.lessons.ladder import attend  # show its code

mask = torch.ones(T, T, dtype=torch.bool).tril()  # True: may attend
out, weights = attend(q, k, v, mask)
print("weights:", tuple(weights.shape), " out:", tuple(out.shape))
heat_map("attention weights of 'returns'", weights[0], names)
fused = F.scaled_dot_product_attention(q, k, v, is_causal=True)
check("these lines = torch's scaled_dot_product_attention", out, fused)
check("weights @ V = the values of weights @ x", out, value(weights @ x))

# Row t of `out` is the sum of all values, each times its weight: a **weighted average** of the
# past. The weights depend on the data. To compute one row, all keys and values of its past are
# needed. The value layer is linear, so it may also follow the average (the last check).
#
# Attention is a **directed graph**: an edge leads from each position to itself and to every later
# one. The mask decides which edges exist; the data decide how much each edge counts. Attention
# moves information between positions: communication. Here queries, keys and values come from one
# text: **self-attention**.
#
# ## As a module
from gpt.lessons.ladder import Head  # show its code

head = Head(C, hs)
for name in ("query", "key", "value"):  # copy the matrices
    getattr(head, name).load_state_dict(locals()[name].state_dict())
check("Head = the steps above", head(x), out)

# Karpathy's notebook has a head with (B, T, C) = (4, 8, 32), hs = 16 and seed 1337. Its x is noise:
# inputs need not come from a vocabulary (a set of tokens).
torch.manual_seed(1337)
noise, other = torch.randn(4, 8, 32), Head(32, 16)
print("out:", tuple(other(noise).shape))
heat_map("weights[0]", other.weights[0])

# ## Two rows of the ladder
# Row `average of values` averages values instead of x, so it has a matrix $W_v$. Row `one head`
# also has queries and keys, so the weights depend on the data.
from gpt.lessons.ladder import AveragedValues  # show its code

V = len(ladder.python_docs()[2])
rows = {
    "average of values": lambda: SmallModel(V, Residual(AveragedValues(64))),
    "one head": lambda: SmallModel(V, Residual(Head(64, 64))),
}
losses = climb(rows, STEPS)


# $W_v$ helps: a past character can add something other than its own embedding. The higher loss of
# `one head` is chance: with the seeds 1 and 2 the head ends at 2.20 and 2.19, below `average of
# values` (2.25 with both). Queries and keys must first be learned, and 300 steps are few. With
# positions a head gains more (lesson `positions`).
#
# ## Exercises
# 1. Set all queries to 0. Which checks fail, and what are the weights of the last row?
#
# ```diff
# -q, k, v = query(x), key(x), value(x)  # (B, T, C) -> (B, T, hs) each
# +q, k, v = 0 * query(x), key(x), value(x)
# ```
#
# 2. Write a mask that shows a query only the last `width` keys.
def window_mask(T: int, width: int) -> Tensor:
    """Return (T, T): True for the last `width` keys up to the query."""


expected = mask & (torch.arange(T)[:, None] - torch.arange(T) < 3)
check("window_mask = the mask of width 3", window_mask(T, 3), expected)

# Answers
#
# 1. All scores are 0, so each row is an average, and the last one has weights of 0.1429 = 1 / 7.
#    The checks "each window alone = the batch" and "Head = the steps above" fail.
#
# 2. From the triangle of ones, remove the triangle that begins `width` rows lower:
#
# ```python
#     ones = torch.ones(T, T, dtype=torch.bool)
#     return ones.tril() & ~ones.tril(-width)
# ```
