"""The lesson `block`. From: Karpathy; ResNet (arXiv:1512.03385), pre-LN (arXiv:2002.04745)."""

# Attention moves information between positions. A **multilayer perceptron** (**MLP**) then computes
# at each position alone: a linear layer to 4 C channels, an **activation** (a function of each
# number), a linear layer to C channels. Attention and MLP form a **block**. Each reads a normalised
# x and adds to x, the **residual stream**.
#
# ```
# x --+-----------------------------(+)--+-----------------------(+)--> x
#     |                              ^   |                        ^
#     +--> LayerNorm --> attention --+   +--> LayerNorm --> MLP --+
# ```
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons import ladder
from gpt.lessons.ladder import AddPositions, Residual, SmallModel, climb
from gpt.lessons.render import check, table
from gpt.lessons.textbook import MultiHeadAttention

STEPS = 300  # training steps for each row of the ladder
from gpt.lessons.textbook import FeedForward, TextbookBlock  # show its code


# ## The activation
# Without an activation the two linear layers of the MLP would equal a single one. **GELU** is near
# 0 for very negative x, near x for very large x, and smooth between. It is x times the chance that
# a standard normal number is less than x. GPT-2 and this block approximate it with tanh:
def gelu(x: Tensor) -> Tensor:
    """Compute GELU in its tanh form (arXiv:1606.08415)."""
    inner = (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inner))


x = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0])
exact = F.gelu(x)
table("GELU", {"x": x, "exact": exact, "tanh form": gelu(x)})
check("gelu = torch's", gelu(x), F.gelu(x, approximate="tanh"))

# Compare with torch's own block:
torch.manual_seed(1337)
block, x = TextbookBlock(C=15, H=3, T=7), torch.randn(2, 7, 15)
form = {"batch_first": True, "norm_first": True}
torchs = nn.TransformerEncoderLayer(15, 3, 60, 0.0, gelu, **form)
pairs = {
    "norm1": block.attention_norm,
    "norm2": block.mlp_norm,
    "linear1": block.mlp.expand,
    "linear2": block.mlp.projection,
    "self_attn.out_proj": block.attention.projection,
}
for name, module in pairs.items():
    torchs.get_submodule(name).load_state_dict(module.state_dict())
torchs.self_attn.in_proj_weight.data = block.attention.qkv.weight.data
mask = torch.full((7, 7), -torch.inf).triu(1)  # an additive mask
expected = torchs(x, src_mask=mask, is_causal=True)
check("this block = torch's", block(x), expected)


# ## Why add, and why normalise?
# Twelve new layers, each y = GELU(x W): what is the standard deviation (std) of the outputs, and
# how long is the gradient of channel 0 at the input (its length is sqrt(16) = 4 if layers copy x)?
def deep(size: float, residual: bool, norm: str = "none") -> list[float]:
    """Return std after layers 1, 6 and 12, and the gradient's length."""
    torch.manual_seed(1337)
    first = x = torch.randn(2, 8, 16, requires_grad=True)
    deviations = []
    for W in size * torch.randn(12, 16, 16) / 4:
        y = gelu((F.layer_norm(x, (16,)) if norm == "before" else x) @ W)
        x = x + y if residual else y
        x = F.layer_norm(x, (16,)) if norm == "after" else x
        deviations.append(x.std().item())
    (gradient,) = torch.autograd.grad(x[..., 0].sum(), first)
    return [deviations[i] for i in (0, 5, 11)] + [gradient.norm().item()]


rows = {
    "plain layers": deep(1, residual=False),
    "twice the weights": deep(2, residual=False),
    "residual": deep(1, residual=True),
    "residual, LayerNorm before": deep(1, residual=True, norm="before"),
}
table("", rows, ["std at 1", "std at 6", "std at 12", "gradient"])


# Plain layers lose the signal and the gradient. With doubled weights the signal grows, but no
# gradient arrives: in channel 0 all inputs to the last GELU are below -16, where GELU is flat. A
# residual connection passes signal and gradient on, but what a layer adds grows with x, so x grows
# exponentially. With LayerNorm before each layer (**pre-LN**) all layers add about equally much.
#
# ## Three rows of the ladder
def blocks(n: int) -> nn.Module:
    """Return a model of n blocks."""
    parts: list[nn.Module] = [TextbookBlock(64, 4, 16) for _ in range(n)]
    parts = [AddPositions(16, 64), *parts, nn.LayerNorm(64)]
    return SmallModel(V, nn.Sequential(*parts))


def blocks_without_norm(n: int) -> nn.Module:
    """Return a model of n blocks without LayerNorm."""
    parts: list[nn.Module] = [AddPositions(16, 64)]
    for _ in range(n):
        parts.append(Residual(MultiHeadAttention(64, 4, 16)))
        parts.append(Residual(FeedForward(64)))
    return SmallModel(V, nn.Sequential(*parts))


V = len(ladder.python_docs()[2])
new_models = {
    "one block": lambda: blocks(1),
    "four blocks without LayerNorm": lambda: blocks_without_norm(4),
    "four blocks with LayerNorm": lambda: blocks(4),
}
losses = climb(new_models, STEPS)
_, without = ladder.fit(lambda: blocks_without_norm(4), STEPS, rate=0.02)
_, with_norm = ladder.fit(lambda: blocks(4), STEPS, rate=0.02)
twice = {"without LayerNorm": [without], "with LayerNorm": [with_norm]}
table("four blocks at twice the learning rate", twice)


# In 300 steps, four blocks learn faster without LayerNorm. But without it the loss explodes at
# twice the learning rate. Deep models and long training need LayerNorm.
#
# ## Exercises
# 1. Normalise after each addition (post-LN, 2017). What becomes of 'residual, LayerNorm before'?
#
# ```diff
# -    "residual, LayerNorm before": deep(1, residual=True, norm="before"),
# +    "residual, LayerNorm before": deep(1, residual=True, norm="after"),
# ```
#
# 2. Write the block by hand.
def by_hand(block: TextbookBlock, x: Tensor) -> Tensor:
    """Return block(x), from the block's attention, mlp and norms."""


x = torch.randn(2, 7, 15)
check("by_hand = the block", by_hand(block, x), block(x))

# Answers
#
# 1. The deviation is 1.0020 after each layer, since the stream itself is normalised, and the
#    gradient is 7.3485 instead of 16.9897: every path to the input passes all norms. Post-LN needs
#    warmup (lesson `training`).
#
# 2. Two residual connections:
#
# ```python
#     x = x + block.attention(block.attention_norm(x))
#     return x + block.mlp(block.mlp_norm(x))
# ```
