"""Dropout: set some numbers to zero at random in training, so that none is relied on.

Sources: "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (JMLR 15, 2014); for
attention weights "Attention Is All You Need" (arXiv:1706.03762) and its first implementations.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons import head, heads
from gpt.lessons.heads import FusedHeads
from gpt.lessons.lesson_page import Page, names
from gpt.lessons.trained import Trained
from gpt.model.attention import CausalSelfAttention
from gpt.model.transformer import GPT, cross_entropy

DRAWS = 4000  # draws whose mean and standard deviation are shown
LOSS_DRAWS = 8  # draws whose mean loss is shown
PS = [0.1, 0.2, 0.5, 0.9]  # probabilities of the tables


def drop(x: Tensor, p: float) -> Tensor:
    """Drop each number with probability p: the naive form, whose mean is (1 - p) x, not x."""
    survives = torch.empty_like(x).bernoulli_(1 - p)  # each 1 or 0
    return x * survives


class ScaledDropout(nn.Module):
    """The better form: divide the numbers that survive by 1 - p, so that the mean is x."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        if not self.training:
            return x
        return drop(x, self.p) / (1 - self.p)


class HeadsWithDropout(FusedHeads):
    """The fused heads, with dropout of the output."""

    def __init__(
        self, C: int, n_head: int, head_size: int, value_size: int, T: int, *, p: float
    ) -> None:
        super().__init__(C, n_head, head_size, value_size, T)
        self.dropout = ScaledDropout(p)

    def forward(self, x: Tensor) -> Tensor:
        """(B, t, C) -> (B, t, C), for any t up to T."""
        out: Tensor = self.dropout(super().forward(x))
        return out


def errors_of_mean(draws: Tensor, expected: Tensor, p: float) -> Tensor:
    """Compare the mean of draws (N, ...) with the expected one (...); return standard errors."""
    error = expected.abs() * math.sqrt(p / (1 - p) / len(draws))
    return torch.where(error > 0, (draws.mean(0) - expected) / error, draws.mean(0))


def loss_with(model: GPT, ids: Tensor, p: float) -> float:
    """Return the mean loss on ids (1, T) in training mode with dropout `p`."""
    parts = [(part, part.p) for part in model.modules() if isinstance(part, nn.Dropout)]
    try:
        for part, _ in parts:
            part.p = p
        logits = model.train()(ids.expand(LOSS_DRAWS, -1))
        return float(cross_entropy(logits[:, :-1], ids[:, 1:].expand(LOSS_DRAWS, -1)))
    finally:
        model.eval()
        for part, old in parts:
            part.p = old


def example(seed: int) -> tuple[Tensor, CausalSelfAttention, HeadsWithDropout]:
    """Draw noise (2, 16, 16), a production attention with dropout .1, and the same by hand."""
    x, attention = heads.example(seed, dropout=0.1)
    by_hand = HeadsWithDropout(16, 8, 32, 24, T=16, p=0.1)
    heads.copy_weights(attention, by_hand)
    return x, attention, by_hand


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    x, attention, by_hand = example(seed)
    page.paragraph("""A model with many parameters can memorise its text instead of learning from
        it. That is **overfitting**: the train loss, on the text that it learns from, falls, while
        the val loss, on text that it never sees in training, rises. **Dropout** makes memorising
        harder. In training each number of a tensor is set to zero with probability p. Each step
        draws other numbers, so no layer can rely on any one of its inputs. The numbers that survive
        are divided by 1 - p. The mean over all draws is then the number itself, and evaluation,
        which drops nothing, sees numbers as large as training did.""")
    page.source(drop, ScaledDropout.forward)
    numbers, half = torch.arange(1.0, 9.0), ScaledDropout(0.5)
    draws = half(numbers.expand(DRAWS, 8))
    unscaled = drop(numbers.expand(DRAWS, 8), 0.5).mean(0)
    page.table(
        f"dropout with p = .5 of eight numbers: three draws, and means of {DRAWS:,}",
        {"x": numbers}
        | {f"draw {i + 1}": draws[i] for i in range(3)}
        | {"mean": draws.mean(0), "mean, unscaled": unscaled},
    )
    page.check_mean(f"mean of {DRAWS:,} draws = x", errors_of_mean(draws, numbers, 0.5))
    page.check("in evaluation it changes nothing", half.eval()(numbers), numbers)
    torch.manual_seed(seed)
    ours = ScaledDropout(0.3)(x)
    torch.manual_seed(seed)
    page.check("by hand = torch's, where both draw from one seed", ours, F.dropout(x, 0.3))
    page.paragraph("""The price is noise: a number x gets the standard deviation |x| sqrt(p / (1 -
        p)). So p is small, .1 or .2, and 0 for a model that is small compared with its text:""")
    measured = torch.stack([ScaledDropout(p)(torch.ones(DRAWS)).std() for p in PS])
    expected = torch.tensor([math.sqrt(p / (1 - p)) for p in PS])
    page.table(
        f"standard deviation of a number 1 over {DRAWS:,} draws, by p",
        {"measured": measured, "sqrt(p / (1 - p))": expected},
        columns=[f"p = {p}" for p in PS],
    )
    _explain_weights(page, seed)
    page.paragraph("""Some GPTs drop attention weights. Here, `model.dropout` applies to the
        embeddings of characters and to the output of each attention and each MLP (two linear
        layers; the lesson `block`). The lesson `recipe` has token dropout, which drops the whole
        embedding of a character. In the heads of the last lesson:""")
    page.source(HeadsWithDropout.forward)
    outputs: list[Tensor] = []
    for part, of_seed in ((by_hand, seed), (attention, seed), (attention, seed + 1)):
        torch.manual_seed(of_seed)
        outputs.append(part(x))
    page.check("by hand = the production model's attention, in training", outputs[0], outputs[1])
    page.check_differ("another seed, other draws: the output", outputs[1], outputs[2])
    page.check("by hand = production, in evaluation", by_hand.eval()(x), attention.eval()(x))
    page.paragraph("""The draws of each training step follow from the run's seed and the step alone.
        A run that is repeated or resumed drops the same numbers, and gives the same losses to the
        last digit.""")
    if trained is not None:
        _explain_trained(page, trained, seed)
    page.exercise(
        """In ScaledDropout.forward leave out `/ (1 - self.p)`. Predict the means in the first
        table, and which checks fail.""",
        f"""Half of x, as in the table's last row: {float(unscaled[-1]):.4f} or so for 8. Both
        checks of a mean fail, and those against torch and the production model in training.
        Evaluation is the same as before: each number there is twice what it was on average in
        training.""",
    )


def _explain_weights(page: Page, seed: int) -> None:
    """Apply dropout to the attention weights of the lesson `head`."""
    x, one = head.example(seed)
    weights = one(x)[1][0]  # (T, T) of the first text
    T, p = len(weights), 0.2
    draws = ScaledDropout(p)(weights.expand(DRAWS, T, T))
    page.paragraph("""If dropout is applied to the attention weights, a query loses some of its keys
        at this step and must use the others. A query with a single key may lose all. A row no
        longer sums to 1, but on average it does. These are the weights of the lesson `head`, with p
        = .2:""")
    page.table(
        "attention weights after dropout: query position (row), key position (column)",
        torch.cat([draws[0], draws[0].sum(1, keepdim=True)], dim=1),
        names("t", T),
        [*names("t", T), "sum"],
        mask=torch.ones(T, T + 1, dtype=torch.bool).triu(1) & (torch.arange(T + 1) < T),
    )
    page.check_mean(f"mean of {DRAWS:,} draws = the weights", errors_of_mean(draws, weights, p))


def _explain_trained(page: Page, trained: Trained, seed: int) -> None:
    """Show what dropout would make of the trained model's loss."""
    trained.introduce(page)
    page.paragraph(f"""It was trained with model.dropout {trained.model.config.dropout:g}. In
        training mode, with dropout p, it would predict this text worse:""")
    if trained.ids.shape[1] == 1:
        page.paragraph("(This needs two characters: the first has to predict the second.)")
        return
    torch.manual_seed(seed)
    ps = [0.0, *PS]
    page.table(
        f"loss in nats per character, the mean of {LOSS_DRAWS} draws",
        torch.tensor([[loss_with(trained.model, trained.ids, p) for p in ps]]),
        ["model.dropout"],
        [f"p = {p:g}" for p in ps],
    )
