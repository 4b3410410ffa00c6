"""The lesson `counting`. From: Karpathy, "Let's build GPT"; Chen and Goodman 1998, TR-10-98."""

# A **language model** predicts the next **token** of a text. Here a token is a character. This
# lesson predicts the next character with a table, measures how good the predictions are, and writes
# a text with them. Later lessons improve only the predictions.
#
# ## Predict: count pairs
# A **bigram** is a pair of neighbours. What follows n in 'banana bandana'?
import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from gpt.lessons.render import check, table

STEPS = 300  # steps of training
word = "banana bandana"
pairs = list(pairwise(word))
after_n = {c: pairs.count(("n", c)) for c in sorted(set(word))}
p = {c: count / sum(after_n.values()) for c, count in after_n.items()}
table("after n", {"count": after_n.values(), "p": p.values()}, map(repr, p))

# ## Measure: the loss in nats
# The **loss** of a prediction is $-\ln p$, where p is the predicted probability of the character
# that follows. Its unit is the **nat**: 0 nats for p = 1, 0.6931 for p = 1/2, infinity for p = 0.
# The loss of a text is the mean over its characters. A model that knows nothing gives each of V
# possible characters p = 1 / V, and has the loss $\ln V$. The **perplexity** is the exponential of
# the loss: a guess among that many equally likely characters has the same loss.
for c in "ad":
    print(f"p({c} after n) = {p[c]}: {-math.log(p[c]):.4f} nats")

# ## A text of half a million characters
# The text of these lessons is the documentation of Python. Each character gets a number, its
# **id**. The first 90 % of the text are the **train split**, the last 10 % the **val split**. The
# counts come from train, and the loss is measured on val, which the model has never seen. A
# **tensor** is an array of numbers; its **shape** lists its sizes. The table `counts` has the shape
# (V, V): row i says how often each character followed character i. Adding 0.01 makes each p > 0.
from gpt.lessons.ladder import climb, python_docs

train_ids, val_ids, characters = python_docs()
V = len(characters)
pair_ids = train_ids[:-1] * V + train_ids[1:]  # (a, b) has the id a V + b
counts = pair_ids.bincount(minlength=V * V).view(V, V) + 0.01
p_next = counts / counts.sum(dim=1, keepdim=True)  # (V, V) / (V, 1)
counted = float(-p_next[val_ids[:-1], val_ids[1:]].log().mean())
print(f"train {len(train_ids):,}, val {len(val_ids):,}, V = {V}")
print(f"loss on val: guessing {math.log(V):.4f}, counted {counted:.4f}")


# ## Train: the same table, without counting
# Counting needs a row for each **context** (the characters before), and long contexts rarely recur.
# **Training** works for any model. The table becomes an `nn.Module`: `__init__` makes its
# **parameters**, the numbers that training changes, and `forward` computes predictions from ids (B,
# T), B texts of T characters; `model(ids)` calls `forward`. A prediction is V **logits**, which
# can be any numbers. **Softmax** turns them into probabilities, positive numbers that sum to 1:
# $\mathrm{softmax}(x)_i = \exp(x_i) / \sum_j \exp(x_j)$.
class Bigram(nn.Module):
    """A table (V, V): row i has the logits after character i."""

    def __init__(self, V: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(V, V))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        return self.table[ids]


model = Bigram(V)
trained = model.table.requires_grad
print(f"counts: {counts.requires_grad}, model.table: {trained}")

# Calling `backward` on a loss gives each tensor with `requires_grad=True` a **gradient**: the
# derivatives of the loss by the tensor's numbers. `nn.Parameter` sets `requires_grad=True`; a
# tensor with `requires_grad=False` is **frozen**. An **optimizer** makes a step of training: it
# moves each parameter against its gradient. The optimizer **Adam** divides each gradient by its
# usual size, so that every parameter moves by about the **learning rate**, which falls from `rate`
# to 0 (lesson `training`). A step uses a **batch**: B = 32 **windows** of T = 16 characters, drawn
# at random. `torch.manual_seed` makes random draws repeatable: the same seed gives the same
# numbers.
import torch.nn.functional as F

from gpt.lessons.ladder import draw_batch, loss_of, train  # show its code

# `climb` sets the seed, makes a new model, trains it and measures its loss on all of val. This loss
# is the first row of a **loss ladder**; its later rows use the same seed, batches and Adam.
losses = climb({"bigram": lambda: Bigram(V)}, STEPS, rate=0.1)

# The loss of the trained table comes close to that of the counted one (2.3194). Both tables see one
# character only. The next lessons use more characters.
#
# ## Write: draw one character after another
from gpt.lessons.ladder import sample  # show its code

model.table.data = counts.log()  # softmax of ln counts = p_next
torch.manual_seed(1337)
written = sample(model, val_ids[:1][None], 60)[0]
print(repr("".join(characters[i] for i in written)))

# ## Optional: longer contexts
# **Kneser-Ney** counts what follows n characters. A discount on each count gives weight to the
# prediction from n - 1 characters. That prediction counts *different* characters before a
# character, not its occurrences: 'Francisco' is frequent, but only after 'San'. For n >= 2, this
# beats the ladder. `gpt eval` compares a trained model with it.
from gpt.evaluation.baselines import KneserNey

ngrams = {}
for n in (0, 1, 2, 4, 8):
    counter = KneserNey(train_ids.numpy(), V, n)
    p = torch.tensor(counter.probabilities(val_ids.numpy()))
    ngrams[n] = -p.log().mean()
table("loss on val by n preceding characters", {"": ngrams.values()}, ngrams)


# ## Exercises
# 1. In a copy (`gpt explain counting --write my.py`), leave out 0.01. What is the counted loss?
#
# ```diff
# -counts = pair_ids.bincount(minlength=V * V).view(V, V) + 0.01
# +counts = pair_ids.bincount(minlength=V * V).view(V, V)
# ```
#
# 2. Write the function `mean_loss`.
def mean_loss(p: Tensor, ids: Tensor) -> Tensor:
    """Return the mean of -ln p[a, b] for neighbours a, b in ids."""


check("mean_loss = counted", mean_loss(p_next, val_ids), counted)

# Answers
#
# 1. The counted loss is inf: val has pairs that train lacks; their p is 0. One such pair is enough.
#
# 2. Pair each id with the one after it:
#
# ```python
#     return -p[ids[:-1], ids[1:]].log().mean()
# ```
