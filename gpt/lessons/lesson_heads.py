"""The lesson `heads`. From: Raschka, chapter 3; arXiv:1706.03762, section 3.2.2."""

# One head has one pattern of weights at each position. Predicting text needs several at once: one
# pattern for the last vowel, one for the start of the word, one for the last line end. **Multi-head
# attention** has H heads, each with its own queries, keys and values. Their outputs are
# **concatenated** and mixed by a last linear layer, the **projection** $W_O$:
#
# $$concat(head_1, ..., head_H) W_O$$
#
# ## A list of heads
# The example has (B, T, C) = (2, 7, 15), now with H = 3 heads of hs = 5: C = H hs, as in most GPTs.
import torch
from torch import Tensor, nn

from gpt.lessons import ladder
from gpt.lessons.ladder import Head, Residual, SmallModel, climb
from gpt.lessons.render import check, heat_map

STEPS = 300  # training steps for each row of the ladder
x, names = ladder.example()
B, T, C = x.shape
H, hs = 3, 5


class ListOfHeads(nn.Module):
    """H heads, computed one after the other."""

    def __init__(self, C: int, H: int, hs: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(C, hs) for _ in range(H))
        self.projection = nn.Linear(H * hs, C)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        outputs = [head(x) for head in self.heads]  # (B, T, hs) each
        return self.projection(torch.cat(outputs, dim=-1))  # (B, T, H * hs)


torch.manual_seed(1337)
apart = ListOfHeads(C, H, hs)
print("out:", tuple(apart(x).shape))
last = torch.stack([head.weights[0, -1] for head in apart.heads])  # (H, T)
heads = ["head 1", "head 2", "head 3"]
heat_map("weights of the last query", last, heads, names)

# ## One matrix product
# One layer, often called `c_attn`, computes the queries, keys and values of all heads; its matrix
# is (C, 3 C), stored transposed. `chunk(3)` cuts the result into three equal parts. (If values are
# larger or smaller than keys, use `split` with the sizes.) `view` cuts each part into H heads of
# hs. `transpose` brings H before t, because `@` multiplies the last two dimensions.
from gpt.lessons.textbook import MultiHeadAttention  # show its code

together = MultiHeadAttention(C, H, T)
for i, name in enumerate(["query", "key", "value"]):  # copy to rows of qkv
    rows = [getattr(head, name).weight.data for head in apart.heads]
    together.qkv.weight.data[C * i : C * (i + 1)] = torch.cat(rows)
together.projection = apart.projection
check("a list of heads = one product", together(x), apart(x))
q, k, v = together.heads(x)
print("qkv", tuple(together.qkv(x).shape), " q", tuple(q.shape))

# ## The mask
# The mask is made once, for T characters, and cropped to the t characters of the input. It has the
# shape (1, 1, T, T), so it is broadcast over the B windows and H heads. It is a **buffer** of the
# module: it moves with the module to another device, and is not trained. It is not `persistent`: a
# checkpoint does not store it. B is read from x, so any batch fits.
y = together(x)
check("4 characters alone = the first 4", together(x[:, :4]), y[:, :4])
check("1 window alone = the first of 2", together(x[:1]), y[:1])
print("parameters:", [name for name, _ in together.named_parameters()])
print("buffers:", [name for name, _ in together.named_buffers()])

# ## Why flatten, and not view
# `transpose` moves no number; it changes the **strides**, the steps in memory from one index to the
# next. `view` needs numbers that lie in memory in the order of the new shape (**contiguous**).
# After `transpose` they do not; `flatten` copies them into that order if necessary:
y = (q @ k.transpose(-2, -1)).softmax(-1) @ v  # (B, H, T, hs)
print("strides:", y.stride(), "transposed:", y.transpose(1, 2).stride())
try:
    y.transpose(1, 2).view(B, T, C)
except RuntimeError as error:
    print("view:", str(error).partition(" (")[0])
y = y.transpose(1, 2)
check("contiguous().view()", y.contiguous().view(B, T, C), y.flatten(2))

# So far hs was C / H, but it need not be. Here T = C = 16, H = 8 and hs = 32, and the projection
# maps H hs = 256 numbers back to C.
eight = ListOfHeads(16, 8, 32)
print("256 -> 16:", tuple(eight(torch.randn(4, 16, 16)).shape))

# ## A row of the ladder
# Four heads of 16 channels have as many parameters for q, k and v as one head of 64. Only the
# projection is new.
V = len(ladder.python_docs()[2])


def four_heads() -> nn.Module:
    """Return a new model with four heads of 16 channels."""
    return SmallModel(V, Residual(MultiHeadAttention(64, 4, 16)))


losses = climb({"four heads": four_heads}, STEPS)


# Four heads with their projection learn faster than one head: 2.1476 against 2.2875. (With the
# seeds 1 and 2, four heads reach 2.14 and 2.14, and one head 2.20 and 2.19.)
#
# ## Exercises
# 1. Join heads by `reshape` without transposing: the shape is the same. Which checks fail, and why?
#
# ```diff
# -        y = y.transpose(1, 2).flatten(2)  # (B, t, H * hs)
# +        y = y.reshape(y.shape[0], y.shape[2], -1)
# ```
#
# 2. Write `split_heads`.
def split_heads(x: Tensor, H: int) -> Tensor:
    """Return x (B, T, H * hs) as (B, H, T, hs)."""


queries = together.qkv(x).chunk(3, dim=-1)[0]
check("split_heads = the queries", split_heads(queries, H), q)

# Answers
#
# 1. A row of H hs numbers should hold all heads of one position. Now it mixes several positions.
#    The check "a list of heads = one product" fails, and so does "4 characters alone = the first
#    4": an early row holds numbers of later positions, so the layer is no longer causal.
#
# 2. Cut the last dimension into H and hs, then swap T and H:
#
# ```python
#     return x.view(x.shape[0], x.shape[1], H, -1).transpose(1, 2)
# ```
