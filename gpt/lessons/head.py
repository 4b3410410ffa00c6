"""One head of attention: queries, keys and values.

B batch, T time, d_in input channels, hs head_size, vs value_size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons.averaging import causal_softmax
from gpt.lessons.page import Page
from gpt.lessons.trained import Trained
from gpt.model.rotary import Rotary
from gpt.text.display import symbol


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """q (..., T, hs), k (..., S, hs), v (..., S, vs) -> out (..., T, vs), weights (..., T, S)."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (..., T, S)
    weights = causal_softmax(scores) if causal else F.softmax(scores, dim=-1)
    return weights @ v, weights


class ParameterHead(nn.Module):
    """The naive form: three matrices that are multiplied by hand; no bias, no mask."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.rand(d_in, d_out))
        self.key = nn.Parameter(torch.rand(d_in, d_out))
        self.value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(..., T, d_in) -> output (..., T, d_out) and weights (..., T, T)."""
        return attend(x @ self.query, x @ self.key, x @ self.value, causal=False)


class Head(nn.Module):
    """The better form: linear layers, which draw their weights on a sensible scale.

    Causal, it is a decoder's head; not causal, an encoder's. With a `context` it is
    cross-attention: queries from one text, keys and values from another.
    """

    def __init__(
        self,
        d_in: int,
        head_size: int,
        value_size: int | None = None,
        *,
        bias: bool = False,
        causal: bool = True,
        qk_norm: bool = False,
        attention_scale: float = 1.0,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        self.query = nn.Linear(d_in, head_size, bias=bias)
        self.key = nn.Linear(d_in, head_size, bias=bias)
        self.value = nn.Linear(d_in, value_size or head_size, bias=bias)
        self.causal, self.rotary = causal, rotary
        self.qk_norm, self.attention_scale = qk_norm, attention_scale

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_in), context (B, S, d_in) -> output (B, T, vs) and weights (B, T, S)."""
        context = x if context is None else context
        q, k, v = self.query(x), self.key(context), self.value(context)
        if self.qk_norm:  # mean 0 and variance 1: no score can grow without bound
            q, k = F.layer_norm(q, q.shape[-1:]), F.layer_norm(k, k.shape[-1:])
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        return attend(self.attention_scale * q, k, v, causal=self.causal)


def example(seed: int) -> tuple[Tensor, Head]:
    """Noise (B, T, C) = (4, 8, 32), and a head of size 16."""
    torch.manual_seed(seed)
    return torch.randn(4, 8, 32), Head(32, 16)


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    x, head = example(seed)
    positions = [f"t={t}" for t in range(x.shape[1])]
    _, weights = head(x)
    page.paragraph(
        """Averaging weighs all of the past equally. In a head each position computes a query (what
        it looks for), a key (what it contains) and a value (what it passes on), by three linear
        layers. Where the dot product of a query and a key is large, so is the attention weight of
        that key's value: each position attends to those whose keys match its query."""
    )
    page.table(
        "attention weights of the first text: query position (row), key position (column)",
        weights[0],
        positions,
        positions,
    )
    page.check("each row sums to 1", weights.sum(-1), torch.ones(weights.shape[:-1]))
    page.check("nothing from the future", weights.triu(1), torch.zeros_like(weights))
    with torch.no_grad():
        uniform = Head(32, 16)
        uniform.load_state_dict(head.state_dict())
        uniform.query.weight.zero_()
    page.check(
        "a head whose queries are zero = the average of the values up to each position",
        uniform(x)[0],
        causal_softmax(torch.zeros(8, 8)) @ head.value(x),
    )
    by_hand = ParameterHead(32, 16)
    encoder = Head(32, 16, causal=False)
    with torch.no_grad():
        for name in ("query", "key", "value"):
            getattr(by_hand, name).copy_(getattr(head, name).weight.T)
            getattr(encoder, name).weight.copy_(getattr(head, name).weight)
    page.check("three matrices by hand = three linear layers", by_hand(x)[0], encoder(x)[0])
    page.paragraph(
        """Without the causal mask every position attends to the whole text: an encoder. With
        queries from one text and keys and values from another it is cross-attention: here 3
        queries attend to 8 keys."""
    )
    page.table(
        "attention weights of cross-attention",
        encoder(x[:1, :3], context=x[:1])[1][0],
        [f"query {t}" for t in range(3)],
        positions,
    )
    if trained is not None:
        attention, q, k, v = next(trained.heads())
        _, weights = attend(q, k, v, causal=True)
        shown = min(12, len(trained.text))
        trained.introduce(page)
        page.table(
            f"layer 1, head 1: attention weights of the last query, {trained.text[-1]!r}, on the "
            f"last {shown} keys",
            weights[0, 0, -1, -shown:],
            columns=[symbol(c) for c in trained.text[-shown:]],
        )
        page.check(
            "this lesson's head = the production model's",
            weights,
            attention.explicit(trained.inputs[0])[1],
        )
