"""The lesson `follow`. From: nostalgebraist, "interpreting GPT: the logit lens" (2020)."""

# How does your own model predict the character after a text? `--run RUN` names the model (default:
# the newest run), `--text` the text (default: the start of the run's val split).
import torch
import torch.nn.functional as F
from torch import Tensor

import gpt
from gpt.api.run_text import run_text
from gpt.errors import GPTError, UsageError
from gpt.evaluation import head_analysis
from gpt.lessons.ladder import attend
from gpt.lessons.render import check, table
from gpt.model.ensemble import members_of
from gpt.terminal import in_one_line, symbol
from gpt.text.batches import to_torch

RUN = None  # name of a run
TEXT = None  # at most 256 characters, and at most model.T
loaded = gpt.load(RUN, device="cpu")
model, *others = members_of(loaded.module)
vocabulary, config = loaded.vocabulary, model.config
longest = min(config.T, 256)
if TEXT is not None:
    ids = vocabulary.encode(loaded.prepare(TEXT))
else:
    try:
        ids = run_text(loaded).val[:longest]
    except GPTError:  # the run's text is gone or has changed: generate a text
        text = "".join(loaded.generate(length=longest, seed=1))
        ids = vocabulary.encode(text)[:longest]
ids = to_torch(ids)  # (T,)
T = len(ids)
if not 0 < T <= longest:
    expected = f"1 to {longest} {vocabulary.unit}s"
    raise UsageError(f"--text: expected {expected}, got {T}")
member = f" (member 1 of {1 + len(others)})" if others else ""
print(f"{loaded.run.resolve().name}{member}, {T} {vocabulary.unit}s:")
line = in_one_line(vocabulary.decode(ids.tolist()))
print(*(line[at : at + 76] for at in range(0, len(line), 76)), sep="\n")

# ## From a character to a vector
# The id of the last character selects a row of the token embedding. If the model has n-gram
# embeddings, they add rows for the characters before it; learned positions add a row for its place.
logits, streams = head_analysis.run_with_streams(model, ids)
names = [symbol(c) for c in vocabulary.names_of(ids.tolist())]
print(f"last token: {names[-1]}, id {int(ids[-1])} of {len(vocabulary)}")
print(f"ngram {config.ngram}, positions {config.positions}, C = {config.C}")
# ## One head
# A head is **ablated** if its output is set to 0. The head below is the one whose ablation raises
# the loss on this text most:
layer, head = 0, 0
if T > 1:
    losses = head_analysis.losses_without_heads(model, ids)
    costs = losses.mean(-1)  # (n_layer, H)
    layer, head = divmod(int(costs.argmax()), costs.shape[1])
block = model.blocks[layer]
x = block.attention_norm(streams[layer])
attention = block.attention
q, k, v = (part[0, head].detach() for part in attention.heads(x))
linear = attention.qkv(x)[0, -1].detach()  # before QK norm
before = linear.split(config.head_size)[head].norm()
print(f"layer {layer + 1}, head {head + 1}, QK norm {config.qk_norm}")
lengths = [before, q[-1].norm(), k.norm(dim=1).max()]
table("length", {"": lengths}, ["W_q x", "the query", "longest key"])

# With QK norm, each query and key is first normalised to mean 0 and variance 1, so its length is at
# most sqrt(hs); with rotary positions it is then rotated, which keeps the length. (With key_offset
# a key combines halves of two keys, and is at most sqrt(2 hs) long.) The score is the dot product
# times attention_scale / sqrt(hs), and softmax of the scores gives the weights.
mask = torch.ones(T, T, dtype=torch.bool).tril()
out, weights = attend(config.attention_scale * q, k, v, mask)
scores = config.attention_scale * k @ q[-1] / config.head_size**0.5  # (T,)
keys = weights[-1].topk(min(8, T)).indices.tolist()
columns = scores, weights[-1], v.norm(dim=1)
rows = {f"t={t} {names[t]}": [each[t] for each in columns] for t in keys}
table("keys with the largest weights", rows, ["score", "weight", "|value|"])
production = attention.weigh(*attention.heads(x))[0][0, head, -1]
check("the weighted sum = the production model's", out[-1], production)


# ## Through the blocks
# What would the model predict if it ended after a block? The **logit lens** applies the last
# LayerNorm and the head of the model to the residual stream after each block.
def lens(x: Tensor) -> Tensor:
    """Map a residual stream (1, T, C) to logits (1, T, V)."""
    return model.head(model.norm(x)).detach()


p = logits[0, -1].softmax(-1)
likely = p.topk(min(6, len(p))).indices
columns = ["length", *(symbol(vocabulary.names[i]) for i in likely)]
stages = ["embedding", *(f"block {i + 1}" for i in range(config.n_layer))]
rows = {}
for stage, x in zip(stages, streams, strict=True):
    rows[stage] = [x[0, -1].norm(), *lens(x)[0, -1].softmax(-1)[likely]]
table("length of the stream, probabilities of the next token", rows, columns)
at_the_end = lens(streams[-1])[0, -1]
check("the last row = the prediction", at_the_end, logits[0, -1])


# ## Exercises
# 1. Leave out the LayerNorm in the lens. Which check fails, and what becomes of the probabilities?
#
# ```diff
# -    return model.head(model.norm(x)).detach()
# +    return model.head(x).detach()
# ```
#
# 2. Compute the logarithm of the probability of a text.
def log_probability(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the sum of ln p of ids[1:], predicted by logits (T, V)."""


nats = F.cross_entropy(logits[0, :-1], ids[1:], reduction="sum")
check("log_probability = -nats", log_probability(logits[0], ids), -nats)

# Answers
#
# 1. LayerNorm brings every stream to the same scale. Without it, a longer stream has larger logits
#    and so more extreme probabilities. The check "the last row = the prediction" fails.
#
# 2. Select ln p of each character that follows:
#
# ```python
#     return logits[:-1].log_softmax(-1).gather(1, ids[1:, None]).sum()
# ```
