"""The block: what is repeated to make a deep model.

The residual stream runs through all blocks; attention and MLP each take a normalised copy of it as
input, and add their output to it.
"""

import math

import torch
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.lessons import heads, normalization
from gpt.lessons.page import Page
from gpt.lessons.trained import Trained
from gpt.model.transformer import Block


def gelu(x: Tensor) -> Tensor:
    """Zero for the very negative, x for the very positive, smooth between (arXiv:1606.08415)."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu2(x: Tensor) -> Tensor:
    """Zero for the negative, x squared for the positive (arXiv:2109.08668); cheap, and as good."""
    return x.clamp(min=0) ** 2


def by_hand(block: Block, x: Tensor) -> Tensor:
    """(B, T, C) -> (B, T, C): the lessons' forms with the production block's weights."""
    normalized = normalization.take_apart(block.attention_norm)(x)
    x = x + heads.take_apart(block.attention)(normalized)
    normalized = normalization.take_apart(block.mlp_norm)(x)
    activation = {"gelu": gelu, "relu2": relu2}[block.mlp.activation]
    hidden = normalized @ block.mlp.expand.weight.T + block.mlp.expand.bias  # (B, T, 4 C)
    return x + activation(hidden) @ block.mlp.projection.weight.T + block.mlp.projection.bias


def deep(x: Tensor, layers: list[Tensor], *, residual: bool, normalise: bool) -> list[float]:
    """The standard deviation of the stream after each of many layers (C, C) with GELU."""
    norm, deviations = normalization.LayerNorm(x.shape[-1]), []
    for weight in layers:
        y = gelu((norm(x) if normalise else x) @ weight)
        x = x + y if residual else y
        deviations.append(float(x.std()))
    return deviations


def example(seed: int) -> tuple[Tensor, Block]:
    """Noise (2, 8, 16), and a block of 4 heads."""
    torch.manual_seed(seed)
    return torch.randn(2, 8, 16), Block(ModelConfig(T=8, C=16, n_head=4, activation="gelu")).eval()


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    x, block = example(seed)
    layers = [torch.randn(16, 16) / 4 for _ in range(12)]
    page.paragraph(
        """Attention moves information between positions; the MLP then computes on each position
        separately. Both make up a block, and blocks are stacked. But through many random layers
        activations shrink, and gradients with them. Two remedies: a residual connection, which
        adds each output to a stream instead of replacing it, and LayerNorm, which normalises each
        input. The standard deviation over 12 layers:"""
    )
    shown = [0, 2, 5, 8, 11]
    table = [
        deep(x, layers, residual=residual, normalise=normalise)
        for residual, normalise in ((False, False), (True, False), (True, True))
    ]
    page.table(
        "standard deviation of the residual stream",
        torch.tensor(table)[:, shown],
        ["plain layers", "residual", "residual + LayerNorm"],
        [f"layer {i + 1}" for i in shown],
    )
    page.paragraph(
        """With plain layers it vanishes; with residual connections alone it grows exponentially,
        since each layer adds in proportion to its input; with LayerNorm each layer adds about the
        same amount. The production model's block consists of these parts, and a few lines of
        arithmetic compute the same:"""
    )
    page.check("the block by hand = the production block", by_hand(block, x), block(x))
    if trained is not None:
        trained.introduce(page)
        rows, _ = trained.names()
        table = []
        for layer, x in zip(trained.blocks, trained.streams, strict=True):
            attended = layer.attention(layer.attention_norm(x))
            computed = layer.mlp(layer.mlp_norm(x + attended))
            table.append([float(part.norm(dim=-1).mean()) for part in (x, attended, computed)])
        page.table(
            "mean norm of the residual stream, and of what each part adds to it",
            torch.tensor(table),
            rows,
            ["stream", "attention", "MLP"],
        )
        page.check(
            "its last block by hand = the production block", by_hand(layer, x), layer(x), 1e-3
        )
