"""Multi-head attention: several heads in parallel, their outputs concatenated and projected.

B batch, T time, C channels, H heads, hs head_size, vs value_size; H * hs need not be C.
"""

import torch
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.lessons.head import Head, attend
from gpt.lessons.page import Page
from gpt.lessons.scaling import entropy
from gpt.lessons.trained import Trained
from gpt.model.attention import CausalSelfAttention


class ListOfHeads(nn.Module):
    """The naive form: H heads one after the other, concatenated, projected back to C."""

    def __init__(self, heads: list[Head], projection: nn.Linear) -> None:
        super().__init__()
        self.heads, self.projection = nn.ModuleList(heads), projection

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        concatenated = torch.cat([head(x)[0] for head in self.heads], dim=-1)  # (B, T, H * vs)
        out: Tensor = self.projection(concatenated)
        return out


class FusedHeads(nn.Module):
    """The better form: the queries, keys and values of all heads from one matrix product."""

    def __init__(self, C: int, n_head: int, head_size: int, value_size: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.sizes = [n_head * head_size, n_head * head_size, n_head * value_size]
        self.qkv = nn.Linear(C, sum(self.sizes), bias=False)
        self.projection = nn.Linear(n_head * value_size, C)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        B, T, _ = x.shape
        q, k, v = (
            part.view(B, T, self.n_head, -1).transpose(1, 2)  # (B, H, T, size)
            for part in self.qkv(x).split(self.sizes, dim=-1)
        )
        y, _ = attend(q, k, v, causal=True)  # (B, H, T, vs)
        out: Tensor = self.projection(y.transpose(1, 2).flatten(2))  # (B, T, H * vs) -> (B, T, C)
        return out


def take_apart(attention: CausalSelfAttention) -> ListOfHeads:
    """The heads of the production model's attention, one by one, with its weights."""
    C = attention.qkv.in_features
    q_size, _, v_size = (size // attention.n_head for size in attention.sizes)
    biased = attention.qkv.bias is not None
    heads = [
        Head(
            *(C, q_size, v_size),
            bias=biased,
            qk_norm=attention.qk_norm,
            attention_scale=attention.scale * q_size**0.5,
            rotary=attention.rotary,
        )
        for _ in range(attention.n_head)
    ]
    parts = [
        part for name in ("query", "key", "value") for part in (getattr(h, name) for h in heads)
    ]
    sizes = [part.out_features for part in parts]
    for part, rows in zip(parts, torch.split(attention.qkv.weight, sizes), strict=True):
        part.weight.data.copy_(rows)
    if biased:
        for part, rows in zip(parts, torch.split(attention.qkv.bias, sizes), strict=True):
            part.bias.data.copy_(rows)
    return ListOfHeads(heads, attention.projection)


def example(seed: int) -> tuple[Tensor, CausalSelfAttention]:
    """Noise (2, 16, 16), and the notebook's shapes: 8 heads of size 32, 256 channels from 16."""
    torch.manual_seed(seed)
    sizes = ModelConfig(
        T=16, C=16, n_head=8, head_size=32, value_size=24, positions="learned", qk_norm=False
    )
    return torch.randn(2, 16, 16), CausalSelfAttention(sizes).eval()


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    x, attention = example(seed)
    apart = take_apart(attention)
    fused = FusedHeads(16, 8, 32, 24)
    fused.qkv.load_state_dict(attention.qkv.state_dict())
    fused.projection.load_state_dict(attention.projection.state_dict())
    page.paragraph(
        """One head has one attention pattern at each position. Predicting text needs several at
        once: the vowel before, the start of the word, the speaker. So there are many heads, each
        with its own queries, keys and values; their outputs are concatenated and projected back to
        the C channels of the residual stream. Here 8 heads have keys of size 32 and values of size
        24, from 16 channels: neither size needs to be C / n_head."""
    )
    page.check("a list of 8 heads = one fused product", apart(x), fused(x))
    page.check("one fused product = the production model's attention", fused(x), attention(x))
    page.check(
        "a shorter text gives the same output at each of its positions",
        attention(x)[:, :5],
        attention(x[:, :5]),
    )
    page.paragraph("Even untrained, the heads attend differently. The entropy of their weights:")
    weights = attention.explicit(x)[1]  # (B, H, T, T)
    columns = [f"head {head + 1}" for head in range(8)]
    page.table(
        "entropy of each head's attention weights (bits), averaged over query positions",
        entropy(weights).mean((0, 2)),
        columns=columns,
    )
    if trained is not None:
        rows, columns = trained.names()
        attentions = [block.attention for block in trained.blocks]
        table = [
            entropy(attention.explicit(inputs)[1]).mean((0, 2))
            for attention, inputs in zip(attentions, trained.inputs, strict=True)
        ]
        trained.introduce(page)
        page.table(
            "entropy of each head's attention weights (bits)", torch.stack(table), rows, columns
        )
        page.paragraph(
            "A head near 0 bits attends to one character; with many bits it averages over many."
        )
        page.check(
            "a list of its heads = the production model's attention",
            take_apart(attentions[-1])(trained.inputs[-1]),
            attentions[-1](trained.inputs[-1]),
        )
