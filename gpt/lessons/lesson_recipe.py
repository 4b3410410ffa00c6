"""The lesson `recipe`. From: the papers named in each part."""

# The textbook GPT learns slowly. This project adds ten parts; config `classic` has only 5 and 9.
# (Parts 7 and 10 are off by default; `gpt train my.txt` turns each on for texts that it helps.)
#
# **1. Rotary positions** (RoPE, arXiv:2104.09864; model.positions). Each pair of channels of a
# query or key is rotated by an angle proportional to the query's or key's position. The two
# positions then enter a score by their **offset** only: how far apart they are, and which comes
# first.
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.config.load import load_config
from gpt.config.schema import ModelConfig
from gpt.lessons.render import check, check_differ, heat_map, table
from gpt.model.keys_and_values import Rotary
from gpt.model.transformer import GPT, cross_entropy


def rotate(x: Tensor) -> Tensor:
    """Rotate channels c and c + hs/2 of x (..., T, hs) by position."""
    T, half = x.shape[-2], x.shape[-1] // 2
    speeds = 10000 ** -(torch.arange(half) / half)
    angles = torch.arange(T)[:, None] * speeds  # (T, hs / 2)
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


torch.manual_seed(1337)
query, key = torch.randn(2, 1, 6).expand(2, 5, 6)  # copied to 5 positions
scores = rotate(query) @ rotate(key).T  # (T, T)
heat_map("scores of one query with one key, at all positions", scores)
check("equal at equal offset", scores[1:, 1:], scores[:-1, :-1])
check_differ("offset -1 and offset 1", scores[0, 1], scores[1, 0])
rotary = Rotary(ModelConfig(T=8, C=6, n_head=1))
rotated = rotary(query[None, None])[0, 0]
check("rotate = production's", rotate(query), rotated)


# **2. QK norm** (arXiv:2302.05442; model.qk_norm). Queries and keys are normalised to mean 0 and
# variance 1. Their length is then sqrt(hs), so no score exceeds sqrt(hs). (Scores are also
# multiplied by model.attention_scale, 1 here; in part 10, keys can be sqrt(2) times as long.)
# Growing queries can no longer cause one-hot weights (lesson `scaling`).
def normalised_scores(q: Tensor, k: Tensor) -> Tensor:
    """Return scores (T, T) of normalised queries and keys (T, hs)."""
    q = F.layer_norm(q, q.shape[-1:])
    k = F.layer_norm(k, k.shape[-1:])
    return q @ k.T / q.shape[-1] ** 0.5


q, k = torch.randn(2, 8, 16)
factors = 1, 10, 100
rows = {
    "without": [(n * q @ k.T / 4).abs().max() for n in factors],
    "with": [normalised_scores(n * q, k).abs().max() for n in factors],
}
table("largest |score|, hs 16, QK norm:", rows, ["q", "10 q", "100 q"])

# **3. n-gram embeddings** (model.ngram). The embedding of a position is a row for its own character
# plus a row for each of the ngram - 1 characters before it. Each distance has a table of its own.
model = GPT(load_config("quickstart").model, 11).eval()
ids = torch.randint(11, (2, 8))
x = model.token_embedding(ids)
for distance, rows_before in enumerate(model.ngram_embeddings, start=1):
    x[:, distance:] += rows_before(ids[:, :-distance])
check("these lines = production's embedding", x, model.embed(ids))

# **4. Squared ReLU** (Primer, arXiv:2109.08668; model.activation): max(x, 0)^2 in the MLP instead
# of GELU.
#
# **5. Zero initialisation.** The head and the last layer of each attention and MLP begin at 0: a
# block adds nothing until it has learned to, and at first all characters are equally likely.
check("a new block returns its input", model.blocks[0](x), x)
loss = cross_entropy(model(ids)[:, :-1], ids[:, 1:])
check("a new model's loss = ln V", loss, math.log(11))

# **6. Muon** (Jordan et al. 2024; train.optimizer) trains the matrices of the blocks, AdamW the
# other parameters. In the gradient of a matrix, a few directions are far longer than the others and
# would dominate the step. If the gradient is U S V^T (its singular value decomposition), the step
# is about U V^T: all directions equally long. Polynomials approximate U V^T (arXiv:2505.16932).
#
# **7. Token dropout** (model.character_dropout): in training, the vectors of some input characters
# are set to zero. **8. Short windows first** (arXiv:2108.06084; train.first_window): the first five
# sixths of the steps use shorter windows, since most of what there is to learn needs little
# context. **9. Epochs**: each pass over the text cuts it into windows that do not overlap. **10.
# Partial key offset** (modded-nanogpt, pull request 169; model.key_offset): half of each key is
# from the previous character, so one layer can find what followed the same character earlier. A
# head that does so is an **induction head** (arXiv:2209.11895), which otherwise needs two layers.
#
# ## What each part brings
# Loss on val (nats per character, means of three seeds) on tinyshakespeare: config
# shakespeare_fast, 100 steps, one part left out. With nothing left out the loss is 1.877; the
# README's 1.875 is seed 1337 alone. A run this short shows only what helps early: here QK norm
# brings little (scripts/experiments.md). Parts 7 and 10 are off in all rows, and part 9 is on.
LOSS_WITH_ALL = 1.877  # nats per character
LEAVE_ONE_OUT = {  # loss without each part (in brackets: its replacement)
    "rotary positions (learned)": 2.002,
    "QK norm and its scale 1.5": 1.880,
    "n-gram embeddings": 2.080,
    "squared ReLU (GELU)": 1.913,
    "initialisation (GPT-2's)": 1.921,
    "Muon (AdamW, its best rate)": 2.125,
    "short windows first": 1.884,
    "all but the initialisation": 2.537,
}
for part, loss in LEAVE_ONE_OUT.items():
    print(f"{part:<28}{loss:.3f}  brings {loss - LOSS_WITH_ALL:6.3f}")


# ## Exercises
# 1. Do not normalise q. What does the row 'with' of the table of scores show?
#
# ```diff
# -    q = F.layer_norm(q, q.shape[-1:])
# ```
#
# 2. Write the n-gram embedding for ngram = 2: with one character before.
def embed_pairs(own: Tensor, before: Tensor, ids: Tensor) -> Tensor:
    """Return own[id] + before[previous id] for each of ids: (T, C)."""


tables = torch.randn(2, 11, 3)
expected = tables[0][ids[0]]
for t in range(1, 8):
    expected[t] += tables[1][ids[0, t - 1]]
check("embed_pairs = a loop", embed_pairs(*tables, ids[0]), expected)

# Answers
#
# 1. The scores grow with the queries, and nothing bounds them: the last number is 100 times the
#    first.
#
# 2. Shift the rows of `before` by one position:
#
# ```python
#     x = own[ids]
#     x[1:] += before[ids[:-1]]
#     return x
# ```
