"""Dropout: set some numbers to zero at random in training, so that none is indispensable."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons import head, heads
from gpt.lessons.lesson_page import Page, names
from gpt.lessons.trained import Trained
from gpt.model.transformer import GPT, cross_entropy

DRAWS = 4000  # number of draws that the first table averages
LOSS_DRAWS = 8  # number of draws over which a loss is averaged
PS = [0.0, 0.1, 0.2, 0.5, 0.9]  # dropout probabilities in the table of losses


def drop(x: Tensor, p: float) -> Tensor:
    """Set each number of x to zero with probability p. The mean over all draws is (1 - p) x."""
    survives = torch.empty_like(x).bernoulli_(1 - p)  # each 1 or 0
    return x * survives


class ScaledDropout(nn.Module):
    """Dropout that scales the kept numbers by 1 / (1 - p), so that the mean over all draws is x."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to x (any shape) in training mode. In evaluation mode, return x."""
        if not self.training:
            return x
        return drop(x, self.p) / (1 - self.p)


def loss_with(model: GPT, ids: Tensor, p: float) -> float:
    """Return the loss in nats on ids (1, T) with dropout `p`, averaged over `LOSS_DRAWS` draws."""
    model = copy.deepcopy(model).train()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = p
    ids = ids.expand(LOSS_DRAWS, -1)
    return float(cross_entropy(model(ids)[:, :-1], ids[:, 1:]))


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    x, one = head.example(seed)
    weights = one(x)[1][0]  # (T, T) of the first text
    page.paragraph("""A model with many parameters can memorise its text instead of learning from
        it. That is **overfitting**: the train loss, on the text that it learns from, falls, while
        the val loss, on text that it never sees in training, rises. **Dropout** makes memorising
        harder. In training each number of a tensor is set to zero with probability p. Each step
        draws other numbers, so no layer can rely on any one of its inputs. The numbers that survive
        are divided by 1 - p. The mean over all draws is then the number itself, and evaluation,
        which drops nothing, sees numbers as large as training did.""")
    page.source(drop, ScaledDropout)
    numbers, half = torch.arange(1.0, 9.0), ScaledDropout(0.5)
    draws = half(numbers.expand(DRAWS, 8))
    unscaled = drop(numbers.expand(DRAWS, 8), 0.5).mean(0)
    page.table(
        f"dropout with p = .5 of eight numbers: three draws, and means of {DRAWS:,}",
        torch.stack([numbers, *draws[:3], draws.mean(0), unscaled]),
        ["x", "draw 1", "draw 2", "draw 3", "mean", "mean, unscaled"],
    )
    page.check("in evaluation: the output = the input", half.eval()(numbers), numbers)
    torch.manual_seed(seed)
    ours = ScaledDropout(0.3)(x)
    torch.manual_seed(seed)
    page.check("by hand = torch's, where both draw from one seed", ours, F.dropout(x, 0.3))
    page.paragraph("""The price is noise: a number x gets the standard deviation |x| sqrt(p / (1 -
        p)), which is |x| for p = .5. So p is small, .1 or .2, and 0 for a model that is small for
        its text.""")
    T, p = len(weights), 0.2
    dropped = ScaledDropout(p)(weights)
    page.paragraph("""If dropout is applied to the attention weights, a query loses some of its keys
        at this step and must use the others. A query with a single key may lose that key. A row no
        longer sums to 1, but on average it does. The weights of the lesson `head`, with p = .2:""")
    page.table(
        "attention weights after dropout: query position (row), key position (column)",
        torch.cat([dropped, dropped.sum(1, keepdim=True)], dim=1),
        names("t", T),
        [*names("t", T), "sum"],
        mask=F.pad(torch.ones(T, T).triu(1) == 1, (0, 1)),
    )
    page.paragraph("""Some GPTs drop attention weights. Here, `model.dropout` applies to the
        embeddings of characters and to the output of each attention and each MLP (two linear
        layers; the lesson `block`). The lesson `recipe` has token dropout, which drops the whole
        embedding of a character. In the attention of the lesson `heads`, with p = .1:""")
    x, attention = heads.example(seed, dropout=0.1)
    torch.manual_seed(seed)
    in_training = attention(x)
    torch.manual_seed(seed)
    by_hand = ScaledDropout(0.1)(attention.eval()(x))
    page.check("by hand = the production model's attention, in training", by_hand, in_training)
    page.paragraph("""The draws of each training step follow from the run's seed and the step alone.
        A run that is repeated or resumed drops the same numbers and gives the same losses.""")
    page.exercise(
        """In ScaledDropout.forward leave out `/ (1 - self.p)`. Predict the means in the first
        table, and which checks fail.""",
        f"""The means are half of x, as in the table's last row: {float(unscaled[-1]):.4f} or so for
        8. The checks against torch and the production model in training fail. Evaluation does not
        change, so its numbers are twice the mean in training.""",
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """Show the trained model's loss with different dropout probabilities."""
    if trained.ids.shape[1] == 1:
        page.paragraph("A text of a single character has no next character, and so no loss.")
        return
    page.paragraph(f"""The model was trained with model.dropout {trained.model.config.dropout:g}.
        The table shows its loss on this text with dropout p. On so short a text, the loss may by
        chance be smaller with a small p than without dropout:""")
    torch.manual_seed(trained.seed)
    page.table(
        f"loss in nats per character, the mean of {LOSS_DRAWS} draws",
        [loss_with(trained.model, trained.ids, p) for p in PS],
        columns=[f"p = {p:g}" for p in PS],
    )
