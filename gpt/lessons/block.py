"""The block: what is repeated to make a deep model.

The residual stream runs through all blocks. Attention and MLP each read a normalised copy of it,
and add their output to it.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.lessons import heads, normalization
from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained
from gpt.model.transformer import GPT, Block

Step = Callable[[Tensor], Tensor]  # (B, T, C) -> (B, T, C)


def gelu(x: Tensor) -> Tensor:
    """Zero for the very negative, x for the very positive, smooth between (arXiv:1606.08415)."""
    cubic = x + 0.044715 * x**3
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * cubic))


def relu2(x: Tensor) -> Tensor:
    """Zero for the negative, x squared for the positive (arXiv:2109.08668): the lesson `recipe`."""
    return x.clamp(min=0) ** 2


class FeedForward:
    """A multilayer perceptron of two linear layers, at each position separately."""

    def __init__(self, expand: Step, projection: Step, activation: Step = gelu) -> None:
        self.expand, self.projection, self.activation = expand, projection, activation

    def __call__(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        hidden = self.activation(self.expand(x))  # (B, T, 4 C)
        return self.projection(hidden)  # (B, T, C)


class PreNormBlock:
    """Attention, then the MLP, each added to the residual stream; LayerNorm before each."""

    def __init__(self, attention_norm: Step, attention: Step, mlp_norm: Step, mlp: Step) -> None:
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def __call__(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = x + self.attention(self.attention_norm(x))
        x = x + self.mlp(self.mlp_norm(x))
        return x


def take_apart(block: Block) -> PreNormBlock:
    """Build the production model's block from the lessons' forms, with its weights."""
    activation = {"gelu": gelu, "relu2": relu2}[block.mlp.activation]
    return PreNormBlock(
        normalization.take_apart(block.attention_norm),
        heads.take_apart(block.attention),
        normalization.take_apart(block.mlp_norm),
        FeedForward(block.mlp.expand, block.mlp.projection, activation),
    )


def stack(model: GPT) -> list[PreNormBlock]:
    """Return all blocks of a production model."""
    return [take_apart(block) for block in model.blocks if isinstance(block, Block)]


def deep(
    x: Tensor,
    layers: list[Tensor],
    residual: bool,
    norm: str = "none",
) -> list[float]:
    """Return the standard deviation of the stream after each of many layers (C, C) with GELU.

    The last number is the norm of the gradient, at the input, of the output's first channel. `norm`
    says where LayerNorm stands: "none", "before" each layer, or "after" each addition.
    """
    normalise = normalization.LayerNorm(x.shape[-1], correction=0)
    deviations = []
    with torch.enable_grad():
        first = x = x.clone().requires_grad_()
        for weight in layers:
            y = gelu((normalise(x) if norm == "before" else x) @ weight)
            x = x + y if residual else y
            x = normalise(x) if norm == "after" else x
            deviations.append(float(x.detach().std()))
        (gradient,) = torch.autograd.grad(x[..., 0].sum(), first)
    return [*deviations, float(gradient.norm())]


def textbook_block(T: int, C: int) -> Block:
    """Return the textbook's block, of 4 heads, with new weights."""
    form = {"positions": "learned", "qk_norm": False, "activation": "gelu", "ngram": 1}
    return Block(ModelConfig.model_validate({"T": T, "C": C, "n_head": 4} | form))


def explain(page: Page, seed: int) -> None:
    """Write the page."""
    torch.manual_seed(seed)
    x, block = torch.randn(2, 8, 16), textbook_block(T=8, C=16).eval()
    layers = [torch.randn(16, 16) / 4 for _ in range(12)]
    page.paragraph("""Attention moves information between positions. A **multilayer perceptron**
        (MLP, or feed-forward network) then computes on each position separately: up to 4 C
        channels, an **activation**, and back to C. Together they are a **block**; blocks are
        stacked. Each part reads a normalised copy of the **residual stream** and adds to it:""")
    page.drawing(
        "the residual stream through one block",
        [
            "x --+-----------------------------(+)--+-----------------------(+)--> x",
            "    |                              ^   |                        ^",
            "    +--> LayerNorm --> attention --+   +--> LayerNorm --> MLP --+",
        ],
    )
    page.paragraph("""Without an activation the MLP's two linear layers would be one. **GELU**
        (arXiv:1606.08415) is 0 for very negative numbers, x for very positive ones, and smooth
        between. The block (PreNormBlock), its MLP, and GELU:""")
    page.source(PreNormBlock.__call__, FeedForward.__call__, gelu)
    page.check("the lesson's block = the production model's", take_apart(block)(x), block(x))
    page.paragraph("""Why are outputs added? Through many random layers activations vanish, and
        gradients with them. A **residual connection** adds each output to the stream instead of
        replacing it (ResNet, arXiv:1512.03385). LayerNorm before each layer (**pre-LN**,
        arXiv:2002.04745) keeps what is added at one size. Twelve new layers:""")
    page.source(deep)
    shown = [0, 2, 5, 8, 11, 12]
    rows = {
        "plain layers": deep(x, layers, residual=False),
        "residual": deep(x, layers, residual=True),
        "residual, pre-LN": deep(x, layers, residual=True, norm="before"),
    }
    page.table(
        "standard deviation of the stream, and the gradient that reaches the input",
        {name: [row[i] for i in shown] for name, row in rows.items()},
        columns=[*(f"layer {i + 1}" for i in shown[:-1]), "gradient"],
    )
    page.paragraph("""With plain layers both vanish. With residual connections alone both grow
        exponentially, as each layer adds in proportion to its input; with LayerNorm it adds about
        the same.""")
    pre, post = (deep(x, layers, residual=True, norm=norm) for norm in ("before", "after"))
    page.exercise(
        """In `explain` (gpt/lessons/block.py) the third call of deep has norm="before". Write
        "after": LayerNorm after each addition, as in the transformer of 2017 (post-LN). What is
        then the standard deviation after 12 layers?""",
        f"""{post[-2]:.4f}, as after every layer: the stream itself is normalised. Every path from
        the output to the input now has a LayerNorm, and in this example the gradient that reaches
        the input is {post[-1]:.4f}, against {pre[-1]:.4f} with pre-LN. Post-LN needs warmup of the
        learning rate; pre-LN can do without (arXiv:2002.04745).""",
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """Show what each part of the blocks adds to the residual stream."""
    norms = []
    for layer, x in zip(trained.blocks, trained.streams, strict=True):
        attended = layer.attention(layer.attention_norm(x))
        computed = layer.mlp(layer.mlp_norm(x + attended))
        norms.append([part.norm(dim=-1).mean() for part in (x, attended, computed)])
    page.table(
        "mean norm of the residual stream, and of what each part adds to it",
        norms,
        trained.layers,
        ["stream", "attention", "MLP"],
    )
    claim = "the lesson's block = its last block, with its weights"
    page.check(claim, take_apart(layer)(x), layer(x))
