"""The block: what is repeated to make a deep model.

A stream runs through all blocks; attention and MLP each read a normalised copy of it and add to it.
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
    """(B, T, C) -> (B, T, C): the production block's weights in this project's lessons."""
    normal = normalization.take_apart(block.attention_norm)(x)
    x = x + heads.take_apart(block.attention)(normal)  # gather from the past
    normal = normalization.take_apart(block.mlp_norm)(x)
    bend = {"gelu": gelu, "relu2": relu2}[block.mlp.activation]
    hidden = bend(normal @ block.mlp.expand.weight.T + block.mlp.expand.bias)  # (B, T, 4 C)
    return x + hidden @ block.mlp.projection.weight.T + block.mlp.projection.bias  # think it over


def deep(x: Tensor, layers: list[Tensor], *, residual: bool, normalise: bool) -> list[float]:
    """The standard deviation of the stream after each of many layers (C, C) with GELU."""
    norm, spread = normalization.LayerNorm(x.shape[-1]), []
    for weight in layers:
        y = gelu((norm(x) if normalise else x) @ weight)
        x = x + y if residual else y
        spread.append(float(x.std()))
    return spread


def example(seed: int) -> tuple[Tensor, Block]:
    """Noise (2, 8, 16), and a block of 4 heads."""
    torch.manual_seed(seed)
    return torch.randn(2, 8, 16), Block(ModelConfig(T=8, C=16, n_head=4, activation="gelu")).eval()


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Tell it."""
    x, block = example(seed)
    layers = [torch.randn(16, 16) / 4 for _ in range(12)]
    page.say(
        """Attention gathers; an MLP then thinks over what was gathered, each character for itself.
        Both are put into a block, and blocks are stacked. But layer upon layer of noise makes the
        numbers fade, and gradients with them. Two remedies: add each result to a stream instead of
        replacing it, and let each part read a normalised copy. The spread after 12 layers:"""
    )
    shown = [0, 2, 5, 8, 11]
    table = [
        deep(x, layers, residual=residual, normalise=normalise)
        for residual, normalise in ((False, False), (True, False), (True, True))
    ]
    page.table(
        "standard deviation of the stream", torch.tensor(table)[:, shown],
        ["plain layers", "residual", "residual + LayerNorm"], [f"layer {i + 1}" for i in shown],
    )  # fmt: skip
    page.say(
        """Plain layers fade; residual ones alone grow ever faster, since each adds in proportion to
        what is there; with LayerNorm each adds about the same amount. The block of the production
        model is those pieces, and these few lines of arithmetic are the block:"""
    )
    page.check("the block by hand = the production block", by_hand(block, x), block(x))
    if trained is not None:
        page.say(trained.introduction())
        rows, _ = trained.names()
        table = []
        for layer, x in zip(trained.blocks, trained.streams, strict=True):
            gathered = layer.attention(layer.attention_norm(x))
            thought = layer.mlp(layer.mlp_norm(x + gathered))
            table.append([float(part.norm(dim=-1).mean()) for part in (x, gathered, thought)])
        page.table("mean length of the stream, and of what is added to it", torch.tensor(table),
                   rows, ["stream", "attention", "MLP"])  # fmt: skip
        page.check(
            "its last block by hand = the production block", by_hand(layer, x), layer(x), 1e-3
        )
