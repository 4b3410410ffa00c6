"""The lesson `training`. From: Karpathy; Adam (arXiv:1412.6980)."""

# All rows of the ladder were trained by the same loop: draw, loss, backward, step (lesson
# `counting`). This lesson writes the step by hand.
#
# ## Adam
# The gradient g of a parameter says how the loss changes with the parameter. **Gradient descent**
# steps by -rate g. If the rate is too small, parameters hardly move; if it is too large, they jump
# over the minimum of the loss. Also, gradients of some parameters are a thousand times those of
# others. **Adam** keeps two running means for each parameter, of g and of g squared, and steps by
# $-rate \cdot mean(g) / \sqrt{mean(g^2)}$: about `rate`, whatever the size of g. Both means begin
# at 0, so they are too small at first; after n steps, dividing by 1 - 0.9^n and 1 - 0.999^n
# corrects for that. (**AdamW** also makes each weight a little smaller at each step: **weight
# decay**. `gpt train` uses AdamW, but Muon for the matrices of the blocks: lesson `recipe`.)
import math

import torch
from torch import Tensor, nn

from gpt.lessons import ladder
from gpt.lessons.ladder import AddPositions, SmallModel, draw_batch, loss_of
from gpt.lessons.render import check, table
from gpt.lessons.textbook import TextbookBlock

STEPS = 300  # steps of training


class AdamByHand:
    """The optimizer Adam (arXiv:1412.6980)."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.steps, self.parameters = 0, parameters
        self.means = [torch.zeros_like(p) for p in parameters]
        self.squares = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update the parameters and clear their gradients."""
        self.steps += 1
        for i, p in enumerate(self.parameters):
            g = p.grad if p.grad is not None else torch.zeros_like(p)
            mean, square = self.means[i], self.squares[i]
            mean.lerp_(g, 0.1)  # 0.9 of the old mean, 0.1 of g
            square.lerp_(g**2, 0.001)
            m = mean / (1 - 0.9**self.steps)
            s = square / (1 - 0.999**self.steps)
            p.sub_(rate * m / (s.sqrt() + 1e-8))
            p.grad = None  # else the gradients of all steps add up


ours, theirs = (nn.Parameter(torch.arange(1.0, 8.0)) for _ in range(2))
adam, torchs = AdamByHand([ours]), torch.optim.Adam([theirs], lr=0.1)
for _ in range(5):
    for parameter in (ours, theirs):
        (parameter.sin() * parameter).sum().backward()
    adam.step(0.1)
    torchs.step()
    torchs.zero_grad()
check("5 steps: AdamByHand = torch's Adam", ours, theirs)


# ## Warmup and clipping
# In the first steps Adam's means are uncertain, and a full step may throw a model far off. With
# **warmup** the rate begins near 0 and rises to its peak. Then it falls to 0, so that the last
# steps are small. **Clipping** takes the gradients of all parameters as one vector and shortens it
# to length 1 if it is longer, as after an unusual batch.
def rate_at(step: int, steps: int, peak: float, warmup: int) -> float:
    """Return a rate that rises for `warmup` steps, then falls to 0."""
    return peak * min((step + 1) / (warmup + 1), 1 - step / steps)


def fit_by_hand(peak: float, warmup: int, clip: float) -> float:
    """Train a model of one block; return its loss on val."""
    train_ids, val_ids, _ = ladder.python_docs()
    model = block()
    torch.manual_seed(1337)
    adam = AdamByHand(list(model.parameters()))
    for step in range(STEPS):
        loss = loss_of(model, *draw_batch(train_ids))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        adam.step(rate_at(step, STEPS, peak, warmup))
    return ladder.val_loss(model, val_ids)


def block() -> nn.Module:
    """Return a new model of one block."""
    torch.manual_seed(1337)
    mix = AddPositions(16, 64), TextbookBlock(64, 4, 16), nn.LayerNorm(64)
    return SmallModel(V, nn.Sequential(*mix))


V, by_rate = len(ladder.python_docs()[2]), {}
for peak in (0.01, 0.1):
    choices = (0, math.inf), (30, math.inf), (30, 1.0)
    by_rate[f"rate {peak}"] = [fit_by_hand(peak, *each) for each in choices]
columns = ["neither", "warmup", "warmup, clipping"]
table("one block: loss on val", by_rate, columns)


# At a rate of 0.01 this small model needs no warmup or clipping. At 0.1, warmup lowers the loss by
# 0.27, and adding clipping raises it by 0.06. Larger models and unusual batches can need warmup and
# clipping, which cost almost nothing. `gpt train` trains more layers for more steps, with warmup,
# and clips if train.grad_clip is above 0. Its loop is in gpt/training/trainer.py, a step in
# gpt/training/step.py, and the rate in gpt/training/schedule.py.
#
# ## Exercises
# 1. Forget to clear the gradients. Which check fails, and why?
#
# ```diff
# -            p.grad = None  # else the gradients of all steps add up
# ```
#
# 2. Write clipping.
def clipped(gradient: Tensor, longest: float) -> Tensor:
    """Return gradient (n,), shortened to the length `longest` if longer."""


both = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
after = [clipped(g, 1.0) for g in both]
check("a long gradient", after[0], torch.tensor([0.6, 0.8]))
check("a short gradient", after[1], both[1])

# Answers
#
# 1. The check "5 steps: AdamByHand = torch's Adam" fails: `backward` adds to the gradients that are
#    there, so each step uses the sum of all gradients so far.
#
# 2. Multiply by a factor of at most 1:
#
# ```python
#     return gradient * min(1.0, longest / float(gradient.norm()))
# ```
