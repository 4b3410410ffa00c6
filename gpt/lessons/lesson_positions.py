"""The lesson `positions`. From: Karpathy; arXiv:1706.03762, section 3.5."""

# A head computes its weights from what the characters are, not from where they are: to attention
# the past is a **set**. With the past in another order, the last output is the same. Without a
# mask, attention is **permutation equivariant**: outputs are permuted as the inputs are.
import torch
from torch import Tensor, nn

from gpt.lessons import ladder
from gpt.lessons.ladder import AveragedValues, Head, Residual, SmallModel
from gpt.lessons.render import check, check_differ, heat_map, table
from gpt.lessons.textbook import MultiHeadAttention

STEPS = 300  # training steps for each row of the ladder
x, names = ladder.example()
B, T, C = x.shape
head = Head(C, 5)
order = torch.tensor([3, 0, 5, 1, 4, 2, 6])  # the last position stays last
check("last output, past permuted", head(x[:, order])[:, -1], head(x)[:, -1])
free, _ = ladder.attend(x, x, x)  # no mask; q = k = v = x
mixed = ladder.attend(*[x[:, order]] * 3)[0]
check("no mask: outputs permuted too", mixed, free[:, order])

# But 'dog bites man' is not 'man bites dog'. So each position gets a vector of its own, a
# **position embedding**, which is added to x. In GPT-2 and in this project's config `classic` it is
# trained, like a character's embedding: a row of a table of T rows.
from gpt.lessons.ladder import AddPositions  # show its code

add = AddPositions(T, C)
in_order, permuted = head(add(x))[:, -1], head(add(x[:, order]))[:, -1]
claim = "last output with positions: in order, permuted"
check_differ(claim, in_order, permuted)


# ## Positions that need no training
# The first transformer had **sinusoidal** positions. Channels 2i and 2i + 1 are the sine and the
# cosine of the angle $t / 10000^{(2i/C)}$: a clock hand that turns with t. The first hand is the
# fastest: one turn takes 6.28 positions. The dot product of the vectors of two positions depends
# only on how far apart they are, but need not fall with the distance:
def sinusoids(T: int, C: int) -> Tensor:
    """Return fixed position vectors (T, C); C is even."""
    frequencies = 10000 ** (-torch.arange(0, C, 2) / C)  # (C / 2,)
    angles = torch.arange(T)[:, None] * frequencies  # (T, C / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


fixed = sinusoids(7, 16)
products = fixed @ fixed.T
heat_map("dot products of sinusoidal positions", products)
check("equal at equal distance", products[1:, 1:], products[:-1, :-1])

# Trained and sinusoidal positions are **absolute**: they say where a character is. **Relative**
# positions say how far apart query and key are; most models now use a relative kind, rotary
# positions (lesson `recipe`). (A decoder of several layers can learn without position embeddings,
# arXiv:2203.16634: the causal mask gives each position a past of a different length.)
#
# ## The gain from values, weights and positions
# A row of the ladder, and a table of four models: `average of values` and `one head`, each without
# and with positions.


def with_positions(f: nn.Module) -> nn.Module:
    """Return a model that adds positions to x, then computes x + f(x)."""
    return SmallModel(V, nn.Sequential(AddPositions(16, 64), Residual(f)))


def four_heads() -> nn.Module:
    """Return a new model with positions and four heads."""
    return with_positions(MultiHeadAttention(64, 4, 16))


V = len(ladder.python_docs()[2])
losses = ladder.climb({"four heads, positions": four_heads}, STEPS)
_, values = ladder.fit(lambda: with_positions(AveragedValues(64)), STEPS)
_, one = ladder.fit(lambda: with_positions(Head(64, 64)), STEPS)
fitted = {"average of values": values, "one head": one}
rows = {name: [losses[name], loss] for name, loss in fitted.items()}
table("loss on val", rows, ["no positions", "positions"])


# An average cannot use positions: its weights are equal wherever a character is, and the vectors of
# the positions only add noise. Attention can: a query can look for a place, such as the previous
# character. So only the head gains from positions: 0.18 nats (about 0.1 with the seeds 1 and 2).
#
# ## Exercises
# 1. Give all positions the same vector. Does the order matter to the last output? Which check
#    fails?
#
# ```diff
# -        return x + self.table.weight[: x.shape[1]]
# +        return x + self.table.weight[:1]
# ```
#
# 2. Compute one number of the table of `sinusoids`.
def sinusoid(t: int, channel: int, C: int) -> float:
    """Return sinusoids(T, C)[t, channel] for an even channel."""


check("sinusoid = the table", sinusoid(5, 4, 16), fixed[5, 4])

# Answers
#
# 1. No: the same vector everywhere says nothing about where a character is. The check "last output
#    with positions: in order, permuted" fails.
#
# 2. The channel is 2i, so it holds a sine:
#
# ```python
#     return float(torch.tensor(t / 10000 ** (channel / C)).sin())
# ```
