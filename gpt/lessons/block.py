"""The block of attention and MLP, which is repeated to make a deep model."""

import math

import torch
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.lessons import normalization
from gpt.lessons.heads import FusedHeads
from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained
from gpt.model.transformer import Block


def gelu(x: Tensor) -> Tensor:
    """Compute GELU: near 0 for very negative x, near x for very positive x (arXiv:1606.08415)."""
    cubic = x + 0.044715 * x**3
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * cubic))


class FeedForward(nn.Module):
    """Two linear layers with GELU between them, applied to each position separately."""

    def __init__(self, C: int) -> None:
        super().__init__()
        self.expand = nn.Linear(C, 4 * C)
        self.projection = nn.Linear(4 * C, C)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        hidden = gelu(self.expand(x))  # (B, T, 4 C)
        return self.projection(hidden)


class PreNormBlock(nn.Module):
    """Block of attention and MLP. Each of the two reads LayerNorm(x) and adds its output to x."""

    def __init__(self, T: int, C: int, n_head: int) -> None:
        super().__init__()
        size = C // n_head
        self.attention_norm = nn.LayerNorm(C)
        self.attention = FusedHeads(C, n_head, size, size, T)
        self.mlp_norm = nn.LayerNorm(C)
        self.mlp = FeedForward(C)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, t, C), for any t up to T, to (B, t, C)."""
        x = x + self.attention(self.attention_norm(x))
        x = x + self.mlp(self.mlp_norm(x))
        return x


def deep(x: Tensor, layers: list[Tensor], residual: bool, norm: str = "none") -> list[float]:
    """Run x through a stack of layers; measure the size of their outputs and of a gradient.

    Args:
        x: (..., C), the input of the first layer.
        layers: for each layer, a matrix W (C, C). The layer maps x to y = GELU(x W).
        residual: if True, a layer returns x + y instead of y.
        norm: where to apply LayerNorm: "before" W, "after" the layer, or "none".

    Returns:
        The standard deviation of each layer's output, and as the last element the norm of ds/dx,
        where s is the sum of channel 0 of the last layer's output.
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


def production_block(T: int, C: int, n_head: int) -> Block:
    """Return a new `Block` in evaluation mode: config `classic`, but with sizes T, C, n_head."""
    form = {"positions": "learned", "qk_norm": False, "activation": "gelu", "ngram": 1}
    return Block(ModelConfig.model_validate({"T": T, "C": C, "n_head": n_head} | form)).eval()


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    torch.manual_seed(seed)
    x, production = torch.randn(2, 8, 16), production_block(T=8, C=16, n_head=4)
    layers = [torch.randn(16, 16) / 4 for _ in range(12)]
    block = PreNormBlock(T=8, C=16, n_head=4)
    block.load_state_dict(production.state_dict())
    page.section("Attention and MLP")
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
    page.paragraph("""Without an activation the MLP's two linear layers would equal a single one.
        **GELU** (arXiv:1606.08415) is 0 for very negative numbers, x for very positive ones, and
        smooth between. The block, its MLP, and GELU:""")
    page.source(gelu, FeedForward, PreNormBlock)
    page.check("with copied weights: this block = the production model's", block(x), production(x))
    page.section("Why add, and why normalise?")
    page.paragraph("""Why are outputs added? Through many random layers activations vanish or
        explode, and gradients with them, depending on the size of the weights. A **residual
        connection** adds each output to the stream instead of replacing it (ResNet,
        arXiv:1512.03385). LayerNorm before each layer (**pre-LN**, arXiv:2002.04745) keeps what
        each layer adds at the same size. The table shows twelve new layers:""")
    page.source(deep)
    shown = [0, 2, 5, 8, 11, 12]
    rows = {
        "plain layers": deep(x, layers, residual=False),
        "twice the weights": deep(x, [2 * weight for weight in layers], residual=False),
        "residual": deep(x, layers, residual=True),
        "residual, pre-LN": deep(x, layers, residual=True, norm="before"),
    }
    page.table(
        "standard deviation of the stream, and the gradient that reaches the input",
        {name: [row[i] for i in shown] for name, row in rows.items()},
        columns=[*(f"layer {i + 1}" for i in shown[:-1]), "gradient"],
    )
    page.paragraph("""With plain layers, stream and gradient vanish, and with twice the weights they
        explode: only weights of the right size keep them. With residual connections alone they
        grow exponentially, because each layer adds in proportion to its input. With LayerNorm,
        each layer adds about the same amount.""")
    pre, post = (deep(x, layers, residual=True, norm=norm) for norm in ("before", "after"))
    page.exercise(
        """In `explain` the last call of deep has norm="before". Write
        "after": LayerNorm after each addition, as in the transformer of 2017 (post-LN). What is
        then the standard deviation after 12 layers?""",
        f"""{post[-2]:.4f}, as after every layer: the stream itself is normalised. Every path from
        the output to the input now has a LayerNorm, and in this example the gradient that reaches
        the input is {post[-1]:.4f}, against {pre[-1]:.4f} with pre-LN. Post-LN needs warmup of the
        learning rate; pre-LN can do without (arXiv:2002.04745).""",
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """Show the mean norms of the residual stream, of attention outputs and of MLP outputs."""
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
