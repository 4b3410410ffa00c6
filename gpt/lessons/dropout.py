"""Dropout: in training some numbers are zero, others at each step, so that none is relied on.

"Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (JMLR 15, 2014), and for
attention weights "Attention Is All You Need" (arXiv:1706.03762) and its first implementations.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.lessons import head
from gpt.lessons.heads import FusedHeads
from gpt.lessons.page import Page
from gpt.lessons.trained import Trained
from gpt.model.attention import CausalSelfAttention
from gpt.model.transformer import GPT, cross_entropy

DRAWS = 4000


def drop(x: Tensor, p: float) -> Tensor:
    """The naive form: each number is zero with probability p. Its mean is (1 - p) x, not x."""
    survives = torch.empty_like(x).bernoulli_(1 - p)  # each 1 or 0
    return x * survives


class Dropout(nn.Module):
    """The better form: what survives is divided by 1 - p, so that the mean is x; in training."""

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
        self.dropout = Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        """(B, t, C) -> (B, t, C), for any t up to T."""
        out: Tensor = self.dropout(super().forward(x))
        return out


def errors_of_mean(draws: Tensor, expected: Tensor, p: float) -> Tensor:
    """(N, ...) draws of dropout -> (...): their mean less what it should be, in standard errors."""
    error = expected.abs() * math.sqrt(p / (1 - p) / len(draws))
    return torch.where(error > 0, (draws.mean(0) - expected) / error, draws.mean(0))


def loss_with(model: GPT, ids: Tensor, p: float, draws: int = 8) -> float:
    """Return the mean loss on ids (1, T) in training mode with dropout `p`."""
    parts = [(part, part.p) for part in model.modules() if isinstance(part, nn.Dropout)]
    try:
        for part, _ in parts:
            part.p = p
        logits = model.train()(ids.expand(draws, -1))
        return float(cross_entropy(logits[:, :-1], ids[:, 1:].expand(draws, -1)))
    finally:
        model.eval()
        for part, old in parts:
            part.p = old


def example(seed: int) -> tuple[Tensor, CausalSelfAttention, HeadsWithDropout]:
    """Noise (2, 16, 16), production's attention with dropout .1, and the same by hand."""
    torch.manual_seed(seed)
    x = torch.randn(2, 16, 16)
    sizes = {"T": 16, "C": 16, "n_head": 8, "head_size": 32, "value_size": 24, "qk_norm": False}
    settings = {"positions": "learned", "dropout": 0.1}
    attention = CausalSelfAttention(ModelConfig.model_validate(sizes | settings))
    by_hand = HeadsWithDropout(16, 8, 32, 24, T=16, p=0.1)
    by_hand.qkv.load_state_dict(attention.qkv.state_dict())
    by_hand.projection.load_state_dict(attention.projection.state_dict())
    return x, attention, by_hand


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    x, attention, by_hand = example(seed)
    page.paragraph(
        """A model with many parameters can memorise its text instead of learning from it:
        **overfitting**. The train loss, on the text that it learns from, falls, while the val loss,
        on text that it never sees in training, rises. **Dropout** makes that harder. In training
        each number of a tensor is set to zero with probability p, others at each step, so that no
        layer can rely on any one of its inputs. What survives is divided by 1 - p: then the mean
        over all draws is the number itself, and evaluation, which drops nothing, sees numbers as
        large as training did."""
    )
    page.source(drop, Dropout.forward)
    numbers, half = torch.arange(1.0, 9.0), Dropout(0.5)
    draws = half(numbers.expand(DRAWS, 8))
    without_scale = drop(numbers.expand(DRAWS, 8), 0.5).mean(0)
    page.table(
        f"dropout with p = .5 of eight numbers: three draws, and means of {DRAWS:,}",
        torch.stack([numbers, *draws[:3], draws.mean(0), without_scale]),
        ["x", "draw 1", "draw 2", "draw 3", "mean", "mean, unscaled"],
    )
    page.check_mean(f"mean of {DRAWS:,} draws = x", errors_of_mean(draws, numbers, 0.5))
    page.check("in evaluation it changes nothing", half.eval()(numbers), numbers)
    torch.manual_seed(seed)
    ours = Dropout(0.3)(x)
    torch.manual_seed(seed)
    page.check("by hand = torch's, where both draw from one seed", ours, F.dropout(x, 0.3))
    page.paragraph(
        """The price is noise: a number x gets the standard deviation |x| sqrt(p / (1 - p)). So p is
        small, .1 or .2, and 0 for a model that is small beside its text:"""
    )
    ps = [0.1, 0.2, 0.5, 0.9]
    page.table(
        f"standard deviation of a number 1 over {DRAWS:,} draws, by p",
        torch.stack(
            [
                torch.stack([Dropout(p)(torch.ones(DRAWS)).std() for p in ps]),
                torch.tensor([math.sqrt(p / (1 - p)) for p in ps]),
            ]
        ),
        ["measured", "sqrt(p / (1 - p))"],
        [f"p = {p}" for p in ps],
    )
    _explain_weights(page, seed)
    page.paragraph(
        """Some GPTs drop attention weights. Here, `model.dropout` applies to the embeddings of
        characters and to the output of each attention and each MLP (two linear layers; the lesson
        `block`). Token dropout, of a character's whole embedding, is in the lesson `recipe`. In the
        heads of the last lesson:"""
    )
    page.source(HeadsWithDropout.forward)
    outputs: list[Tensor] = []
    for part in (by_hand, attention, attention):
        torch.manual_seed(seed + len(outputs) // 2)  # the first two alike
        outputs.append(part(x))
    page.check("by hand = the production model's attention, in training", outputs[0], outputs[1])
    page.check_differ("another seed, other draws: the output", outputs[1], outputs[2])
    page.check("by hand = production, in evaluation", by_hand.eval()(x), attention.eval()(x))
    page.paragraph(
        """The draws of each training step follow from the run's seed and the step alone: a run that
        is repeated or resumed drops the same numbers, and gives the same losses to the last digit.
        """
    )
    if trained is not None:
        trained.introduce(page)
        _explain_losses(page, trained, seed, ps)
    shrunk = float(without_scale[-1])
    page.exercise(
        """In Dropout.forward leave out `/ (1 - self.p)`. Predict the means in the first table, and
        which checks fail.""",
        f"""Half of x, as in the table's last row: {shrunk:.4f} or so for 8. Both checks of a mean
        fail, and those against torch and the production model in training. Evaluation is
        the same as before: each number there is twice what it was on average in training.""",
    )


def _explain_weights(page: Page, seed: int) -> None:
    """Dropout of the attention weights of the lesson `head`."""
    x, one = head.example(seed)
    weights = one(x)[1][0]  # (T, T) of the first text
    T, p = len(weights), 0.2
    draws = Dropout(p)(weights.expand(DRAWS, T, T))
    positions = [f"t={t}" for t in range(T)]
    page.paragraph(
        """Applied to the attention weights, a query loses some of its keys at this step, and must
        do with the others; one that has a single key may lose all. A row no longer sums to 1, but
        on average it does. These are the weights of the lesson `head`, with p = .2:"""
    )
    page.table(
        "attention weights after dropout: query position (row), key position (column)",
        torch.cat([draws[0], draws[0].sum(1, keepdim=True)], dim=1),
        positions,
        [*positions, "sum"],
        mask=torch.ones(T, T + 1, dtype=torch.bool).triu(1) & (torch.arange(T + 1) < T),
    )
    page.check_mean(f"mean of {DRAWS:,} draws = the weights", errors_of_mean(draws, weights, p))


def _explain_losses(page: Page, trained: Trained, seed: int, ps: list[float]) -> None:
    """What dropout would make of the trained model's loss."""
    config = trained.model.config
    page.paragraph(
        f"""It was trained with model.dropout {config.dropout:g}. In training mode, with dropout p,
        it would predict this text worse:"""
    )
    if trained.ids.shape[1] == 1:
        page.paragraph("(Not to be seen on one character, which has no next to predict.)")
        return
    torch.manual_seed(seed)
    losses = [[loss_with(trained.model, trained.ids, p) for p in (0.0, *ps)]]
    page.table(
        "loss in nats per character, the mean of 8 draws",
        torch.tensor(losses),
        ["model.dropout"],
        [f"p = {p:g}" for p in (0.0, *ps)],
    )
