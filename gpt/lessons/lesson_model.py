"""The lesson `model`. From: Karpathy; GPT-2 (Radford et al. 2019), section 2.3."""

# All parts are known; the model connects them. The id of a character selects a row of a table, its
# **token embedding**, and its position selects a row of a second table. Their sum begins the
# residual stream, which runs through the blocks and a last LayerNorm. The **head** of the model is
# a linear layer, and not a head of attention. It maps the C channels of each position to V logits,
# one for each character that could be next.
import math

import torch
from torch import Tensor, nn

from gpt.lessons.ladder import loss_of
from gpt.lessons.render import check, check_differ, table
from gpt.lessons.textbook import TextbookBlock

B, T, C, H, V = 2, 7, 15, 3, 11

from gpt.lessons.textbook import TextbookGPT  # show its code

# ## Shapes
torch.manual_seed(1337)
model = TextbookGPT(V, T, C, H, n_layer=2)
ids = torch.randint(V, (B, T))
x = model.token_embedding(ids)
print("ids", tuple(ids.shape), "in (B, T)")
print("embedded", tuple(x.shape), "in (B, T, C)")
print("after the blocks", tuple(model.blocks(x).shape), "in (B, T, C)")
print("logits", tuple(model(ids).shape), "in (B, T, V)")

# ## Before training
# The loss of a new model is about ln V: its logits are small, so all characters are almost equally
# likely. If the loss is far above ln V, the initial weights are wrong.
big = TextbookGPT(65, T=64, C=128, H=4, n_layer=4)
texts = torch.randint(65, (16, 65))
loss = loss_of(big, texts[:, :-1], texts[:, 1:])
table("a new model", {"": [loss, math.log(65)]}, ["loss", "ln V"])

# The logits at the last position depend on all characters, those at the first only on the first:
changed = ids.clone()
changed[:, -1] = (ids[:, -1] + 1) % V
before, after = model(ids), model(changed)
claim = "a later character changes no earlier logits"
check(claim, after[:, :-1], before[:, :-1])
changed = ids.clone()
changed[:, 0] = (ids[:, 0] + 1) % V
after = model(changed)
claim = "an earlier character changes later logits"
check_differ(claim, after[:, -1], before[:, -1])

# ## How many parameters?
# In each block, attention has 4 C C + C parameters (q, k, v, and the projection with a bias), the
# MLP has 8 C C + 5 C, and the two LayerNorms have 4 C. Together: 12 C C + 10 C. The embeddings
# have (V + T) C, the head has V C, and the last LayerNorm has 2 C.
count = sum(p.numel() for p in big.parameters())
print(f"V 65, T 64, C 128, 4 blocks: {count:,} parameters")

# ## The same model in this project
# `gpt train --config classic` trains this architecture. With copied weights, the model of this
# project (`production`) has the same logits. (In a new model of `classic`, the weights of the head
# and of the projections are 0. All characters are then equally likely, and the loss is ln V.)
from gpt.config.load import load_config
from gpt.model.transformer import GPT

production = GPT(load_config("classic").model, 65).eval()
production.load_state_dict(big.state_dict())
inputs = texts[:, :64]
check("TextbookGPT = production", big(inputs), production(inputs))


# `gpt explain textbook --write textbook.py` writes this model and its training as one program that
# needs only torch.
#
# GPT-2 has the same architecture, with these differences: its tokens are parts of words (**byte
# pair encoding**, V = 50,257); its queries, keys and values have biases; its token embedding is
# also its head (**weight tying**, arXiv:1608.05859); its initial weights have standard deviation
# 0.02, or less in projections; and it was trained with dropout (lesson `dropout`).
#
# ## Exercises
# 1. Leave out the blocks. What do the logits still depend on, and which checks fail?
#
# ```diff
# -        x = self.norm(self.blocks(x))  # (B, t, C)
# +        x = self.norm(x)
# ```
#
# 2. Count the parameters by a formula.
def parameters(V: int, T: int, C: int, n_layer: int) -> int:
    """Return the number of parameters of TextbookGPT."""


check("parameters = the count", parameters(65, 64, 128, 4), count)

# Answers
#
# 1. On the character itself and its position only: a bigram model that has positions. These checks
#    fail: "an earlier character changes later logits" and "TextbookGPT = production".
#
# 2. As above:
#
# ```python
#     block = 12 * C * C + 10 * C
#     return (V + T) * C + n_layer * block + 2 * C + V * C
# ```
