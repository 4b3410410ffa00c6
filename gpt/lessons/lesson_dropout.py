"""The lesson `dropout`. From: Raschka, chapter 3; Srivastava et al., JMLR 15 (2014)."""

# A model with many parameters can memorise its text. That is **overfitting**: the loss on train
# falls, and the loss on val rises. **Dropout** makes memorising harder: in training, each number of
# a tensor is set to 0 with probability p. At each step, different numbers are dropped, so no layer
# can rely on any one of them. The numbers that are kept are divided by 1 - p. On average, a number
# then keeps its value. Evaluation drops nothing, and sees numbers of the same size.
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons import ladder
from gpt.lessons.ladder import AddPositions, Head, SmallModel
from gpt.lessons.render import check, heat_map, table
from gpt.lessons.textbook import TextbookBlock

STEPS = 300  # steps of training


class DropoutByHand(nn.Module):
    """In training, set each number to 0 with probability p; else return x."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Map x to a tensor of the same shape."""
        if not self.training:
            return x
        survives = torch.empty_like(x).bernoulli_(1 - self.p)  # 1 or 0
        return x * survives / (1 - self.p)


torch.manual_seed(1337)
half, numbers = DropoutByHand(0.5), torch.arange(1.0, 9.0)
draws = half(numbers.expand(4000, 8))
rows = {"x": numbers, "a draw": draws[0], "mean of 4,000": draws.mean(0)}
table("p = 0.5", rows)
check("in evaluation: the output = the input", half.eval()(numbers), numbers)
torch.manual_seed(1337)
ours = DropoutByHand(0.3)(numbers)
torch.manual_seed(1337)
check("by hand = torch's, after the same seed", ours, F.dropout(numbers, 0.3))

# `model.train()` and `model.eval()` set `training` for all parts of a model. The price of dropout
# is noise: a number x gets the standard deviation |x| sqrt(p / (1 - p)), which is |x| for p = 0.5.
# Usual values of p are 0.1 and 0.2, and 0 for a model that is small for its text.

# ## Where a GPT drops
# GPT-2 drops attention weights, the output of attention and of the MLP, and the embeddings. Without
# one of its weights, a query must use other keys. The sum of a row of weights is 1 only on average.
# (By chance, row 3 loses all of its weights here.)
x, names = ladder.example()
head = Head(15, 5)
head(x)
torch.manual_seed(1)
dropped = DropoutByHand(0.2)(head.weights[0])
sums = dropped.sum(dim=1, keepdim=True)
both = torch.cat([dropped, sums], 1)
heat_map("weights after dropout, p = 0.2", both, names, [*names, "sum"])


# This project's `model.dropout` applies to embeddings and to the output of each attention and each
# MLP, not to attention weights. What is dropped depends only on the run's seed and the step, so a
# resumed run drops the same numbers as a run without a break.
#
# ## Overfitting, without and with dropout
# One block, trained on 5,000 characters only. Without dropout it overfits: the loss on train is far
# below that on val. With p = 0.2 the loss on val is 0.21 lower, with p = 0.5 only 0.05 lower.
def block_with(p: float) -> nn.Module:
    """Return a model of one block, with dropout before and after it."""
    parts = AddPositions(16, 64), DropoutByHand(p), TextbookBlock(64, 4, 16)
    end = DropoutByHand(p), nn.LayerNorm(64)
    return SmallModel(V, nn.Sequential(*parts, *end))


train_ids, val_ids, characters = ladder.python_docs()
V, few, by_p = len(characters), train_ids[:5000], {}
for p in (0.0, 0.2, 0.5):
    model, loss = ladder.fit(lambda p=p: block_with(p), STEPS, ids=few)
    by_p[f"p = {p}"] = [ladder.val_loss(model, few), loss]
table("loss after training on 5,000 characters", by_p, ["train", "val"])


# ## Exercises
# 1. Do not divide by 1 - p. What are the means then, and which checks fail?
#
# ```diff
# -        return x * survives / (1 - self.p)
# +        return x * survives
# ```
#
# 2. Write token dropout (lesson `recipe`), which drops whole characters.
def drop_tokens(x: Tensor, survives: Tensor) -> Tensor:
    """Zero the vectors of x (B, T, C) where survives (B, T) is 0."""


survives = torch.tensor([[1.0, 0, 1, 1, 0, 1, 1], [0, 1, 1, 1, 1, 1, 1]])
expected = torch.einsum("btc,bt->btc", x, survives)
check("drop_tokens", drop_tokens(x, survives), expected)

# Answers
#
# 1. The means are half of x, and evaluation sees numbers twice as large as training did. The check
#    "by hand = torch's, after the same seed" fails.
#
# 2. Give `survives` a last dimension of 1, which is broadcast over C:
#
# ```python
#     return x * survives[:, :, None]
# ```
