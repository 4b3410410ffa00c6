"""The lesson `masks`. From: Karpathy; Raschka; arXiv:1706.03762, section 3.2.3."""

# A mask says which keys a query may attend to. For T queries and S keys its shape is (T, S).
#
# - An **encoder** (BERT) has no mask: each position attends to the whole text. It represents a
#   given text, to classify it or to fill in a blank.
# - A **decoder** (GPT) has the causal mask, a triangle. It is **autoregressive**: it predicts a
#   character, appends it, and predicts the next one. One window of T characters trains T
#   predictions at once.
# - An **encoder-decoder** (the first **transformer**, a model of attention layers, for translation)
#   has both parts, and **cross-attention**: queries from the target text of T tokens, keys and
#   values from the source text of S tokens, no mask.
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons import ladder
from gpt.lessons.ladder import AddPositions, Head, Residual, SmallModel
from gpt.lessons.render import check, heat_map, table

STEPS = 300  # steps of training
torch.manual_seed(1337)
target, source = torch.randn(1, 3, 15), torch.randn(1, 5, 15)
query, key, value = (nn.Linear(15, 5, bias=False) for _ in range(3))
out, weights = ladder.attend(query(target), key(source), value(source))
print("weights (B, T, S):", tuple(weights.shape), " out:", tuple(out.shape))
keys = ["s=0", "s=1", "s=2", "s=3", "s=4"]
heat_map("weights of cross-attention", weights[0], columns=keys)

# ## Generating needs one query
# A new character adds a row to the matrix of weights. The rows above never attend to the new
# character. So the earlier keys and values are kept (a **key-value cache**), and only the row of
# the new query is computed. The query needs no mask: all keys are in its past.
x, names = ladder.example()
head = Head(15, 5)
out, (q, k, v) = head(x), (head.query(x), head.key(x), head.value(x))
one, _ = ladder.attend(q[:, -1:], k, v)
check("the last query alone = the last row", one, out[:, -1:])


# ## Two ways to write a mask
# `masked_fill` takes a **boolean** mask; a mask of floats raises an error. Convert a mask of zeros
# and ones by a comparison (`mask == 0`):
def causal(T: int) -> Tensor:
    """Return the mask (T, T): True where the key is not after the query."""
    return torch.ones(T, T, dtype=torch.bool).tril()


scores = q @ k.transpose(-2, -1) / 5**0.5
try:
    scores.masked_fill(torch.ones(7, 7).triu(1), float("-inf"))
except RuntimeError as error:
    print(error)


# An **additive** mask is added to the scores, as in Hugging Face's eager code: 0 where a query may
# attend, and the lowest float32, -3.4e38, where not. Both kinds of mask give masked keys weight 0,
# unless a query may attend to nothing, as in a text that is **padded** (filled up) to the length of
# a longer one. Then -inf everywhere gives 0 / 0, NaN, and the lowest number everywhere gives equal
# weights.
def additive(allowed: Tensor) -> Tensor:
    """Return 0 where `allowed`, else the lowest float32."""
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(allowed.shape).masked_fill(~allowed, lowest)


added = (scores + additive(causal(7))).softmax(dim=-1)
check("boolean mask = additive mask", added, head.weights)
nothing = torch.zeros(1, 3, dtype=torch.bool)
infinite = torch.zeros(1, 3).masked_fill(~nothing, -torch.inf)
print("nothing allowed, -inf:", infinite.softmax(-1))
print("nothing allowed, lowest:", additive(nothing).softmax(-1))


# ## The mask the wrong way round
# True means "may attend" in torch's `scaled_dot_product_attention` and "may NOT attend" in its
# `nn.MultiheadAttention`. If the two are confused, each position attends only to those *after* it,
# and the last one to nothing. No shape is wrong, and each row but the last still sums to 1. A test
# finds the mistake: change the input at s; no output before s may change.
class InvertedHead(Head):
    """A head that attends to the future."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to (B, T, hs)."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        scores = scores + additive(~causal(x.shape[1]))
        return scores.softmax(dim=-1) @ v


def leaks(layer: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether earlier outputs depend on the last input."""
    changed = x.clone()
    changed[:, -1] *= -1
    return not torch.equal(layer(x)[:, :-1], layer(changed)[:, :-1])


inverted = InvertedHead(15, 5)
print("leaks: causal", leaks(head, x), " inverted", leaks(inverted, x))
theirs, x4 = nn.MultiheadAttention(15, 3, batch_first=True), x[:1, :4]
nan = theirs(x4, x4, x4, attn_mask=causal(4))[0]
zero = F.scaled_dot_product_attention(x4, x4, x4, ~causal(4))
print("last output: MultiheadAttention", nan[0, -1, 0].item(), end=", ")
print("scaled_dot_product_attention", zero[0, -1, 0].item())


# Train one head with each mask. A trained vector is added to each position (lesson `positions`):
# without it, a head could not tell which later character is *next*. Print the loss by position:
def with_positions(f: nn.Module) -> nn.Module:
    """Return a model that adds positions to x, then computes x + f(x)."""
    return SmallModel(V, nn.Sequential(AddPositions(16, 64), Residual(f)))


_, val_ids, characters = ladder.python_docs()
V, by_position, written = len(characters), {}, {}
for name, kind in {"causal": Head, "inverted": InvertedHead}.items():
    model, loss = ladder.fit(lambda k=kind: with_positions(k(64, 64)), STEPS)
    windows = val_ids.unfold(0, 17, 16)  # (number of windows, T + 1)
    logits, y = model(windows[:, :-1]).detach(), windows[:, 1:]
    losses = F.cross_entropy(logits.mT, y, reduction="none").mean(0)  # (T,)
    by_position[name] = [losses[:-1].mean(), losses[-1], loss]
    torch.manual_seed(1337)
    ids = ladder.sample(model, val_ids[:1][None], 50)[0]
    written[name] = "".join(characters[i] for i in ids)
table("loss on val", by_position, ["positions 0-14", "position 15", "mean"])
for name, text in written.items():
    print(f"{name}: {text!r}")


# The inverted model copies the next character, which it can see: 0.05 nats at all positions but the
# last. The last position has no later character to copy, and the model has learned nothing else:
# 2.58 nats, against 2.08 with the causal mask. A low mean loss does not prove that a model is good:
# to write text, a model uses only the prediction at its last position.
#
# ## Exercises
# 1. Let no position attend to itself. Which check fails, and what are the weights of position 0?
#
# ```diff
# -    return torch.ones(T, T, dtype=torch.bool).tril()
# +    return torch.ones(T, T, dtype=torch.bool).tril(-1)
# ```
#
# 2. Write the mask of a padded batch.
def padding_mask(lengths: Tensor, T: int) -> Tensor:
    """Return (B, 1, T): True for the first lengths[b] keys of text b."""


wanted = torch.tensor([[[1, 1, 0, 0]], [[1, 1, 1, 1]]])
check("padding_mask", padding_mask(torch.tensor([2, 4]), 4), wanted)

# Answers
#
# 1. The check "boolean mask = additive mask" fails: `Head` makes its own mask. Position 0 may now
#    attend to nothing, so softmax gives equal weights to all positions, even later ones.
#
# 2. Compare the positions with the lengths:
#
# ```python
#     return torch.arange(T) < lengths[:, None, None]
# ```
