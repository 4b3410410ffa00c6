"""A decoder-only transformer: embeddings, pre-LayerNorm blocks, logits.

Shapes: B batch, T time, C channels, V vocabulary size; attention.py defines the sizes of a head.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gpt.config.schema import ModelConfig
from gpt.device import SkipInitialization, product_dtype
from gpt.model.attention import CausalSelfAttention
from gpt.model.dropout import Dropout
from gpt.model.keys_and_values import Cache, LayerCache, Rotary
from gpt.text.vocabulary import MASKED
from gpt.torch_private import linear_relu

# A vocabulary of at least this size is large: most of its characters are rare, and the output layer
# takes most of a step's time. `fuses_head` and `initialize` depend on whether it is large.
LARGE_VOCABULARY = 1000


class ExpandReLU2(torch.autograd.Function):
    """Linear layer and squared ReLU, relu(x)^2 (Primer, arXiv:2109.08668), as one operation.

    With separate operations, autograd would pass over the MLP's wide activations more often. The
    additional passes would take a quarter of the MLP's training time.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        """Map (B, T, C) to (B, T, D) by a weight (D, C) and a bias (D,); compute in `dtype`."""
        x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
        positive = linear_relu(x, weight, bias)
        ctx.save_for_backward(x, weight, positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of x, weight and bias."""
        x, weight, positive = ctx.saved_tensors
        half = gradients[0] * positive  # half the gradient at z, as d relu(z)^2 / dz = 2 relu(z)
        half_rows = half.flatten(0, -2)  # (B T, D)
        by_weight = 2 * (half_rows.T @ x.flatten(0, -2))  # (D, C)
        return half @ (2 * weight), by_weight, 2 * half_rows.sum(0), None


expand_relu2: Callable[..., Tensor] = ExpandReLU2.apply


class MLP(nn.Module):
    """Two linear layers with an activation between, applied to each character separately.

    The activation is GELU (arXiv:1606.08415) or squared ReLU.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.expand = nn.Linear(config.C, 4 * config.C)
        self.projection = nn.Linear(4 * config.C, config.C)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        if self.activation == "relu2":
            hidden = expand_relu2(x, self.expand.weight, self.expand.bias, product_dtype(x))
        else:
            hidden = F.gelu(self.expand(x), approximate="tanh")
        return self.dropout(self.projection(hidden))  # (B, T, 4 C) -> (B, T, C)


class Block(nn.Module):
    """Attention, then MLP. Each reads the normalised residual stream and adds to the stream.

    LayerNorm precedes each part, as in GPT-2. arXiv:2002.04745 explains why this trains better.
    """

    def __init__(self, config: ModelConfig, rotary: Rotary | None = None) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.C)
        self.attention = CausalSelfAttention(config, rotary)
        self.mlp_norm = nn.LayerNorm(config.C)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Add the outputs of attention and MLP to the residual stream x (B, T, C).

        `cache` has the keys and values of earlier characters.
        """
        x = x + self.attention(self.attention_norm(x), cache)
        x = x + self.mlp(self.mlp_norm(x))
        return x


class TokenEmbedding(nn.Embedding):
    """Embedding table: a vector for each id, and a vector of zeros for the id MASKED."""

    def forward(self, input: Tensor) -> Tensor:
        """Map ids (B, T) to vectors (B, T, C)."""
        V = self.num_embeddings
        with_zeros = F.pad(self.weight, (0, 0, 0, 1))  # (V + 1, C); the last row is zero
        return F.embedding(torch.where(input == MASKED, V, input), with_zeros)  # (B, T, C)


class GPT(nn.Module):
    """Transformer that maps ids to logits.

    With `config.ngram` = n, a character's embedding is a sum of n vectors: one for the character,
    and one for each of the n - 1 characters before it. Each distance has its own table. Attention
    heads then need not look up these characters.

    The output layer (`head`) of a new model is zero: each of the V characters is equally likely,
    and the loss is ln V. Random weights are drawn from `generator`; see `initialize`.
    """

    def __init__(
        self, config: ModelConfig, vocabulary_size: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.config = config
        with SkipInitialization():
            self.token_embedding = TokenEmbedding(vocabulary_size, config.C)
            self.ngram_embeddings = nn.ModuleList(
                TokenEmbedding(vocabulary_size, config.C) for _ in range(config.ngram - 1)
            )
            self.position_embedding = (
                nn.Embedding(config.T, config.C) if config.positions == "learned" else None
            )
            self.dropout = Dropout(config.dropout)
            rotary = Rotary(config) if config.positions == "rotary" else None
            self.blocks = nn.ModuleList(Block(config, rotary) for _ in range(config.n_layer))
            self.norm = nn.LayerNorm(config.C)
            self.head = nn.Linear(config.C, vocabulary_size, bias=False)
        self.float()  # even if torch's default dtype is not float32
        initialize(self, generator)

    def forward(self, ids: Tensor, cache: Cache | None = None, member: int = 0) -> Tensor:
        """Predict the next character at each position.

        Args:
            ids: (B, T). ValueError is raised if T exceeds `config.T`. MASKED has a zero embedding.
            cache: keys and values of the texts that `ids` continue; those of `ids` are appended.
            member: index of this model among the members of an ensemble, which share `cache`.

        Returns:
            Logits (B, T, V); those at position t predict the character at t + 1.
        """
        return self.head(self.hidden(ids, cache, member))  # (B, T, V)

    def hidden(self, ids: Tensor, cache: Cache | None = None, member: int = 0) -> Tensor:
        """Return the input (B, T, C) of the output layer. The arguments are those of `forward`."""
        T = ids.shape[1]
        if T > self.config.T:
            raise ValueError(f"expected at most T = {self.config.T} characters, got {T}")
        if cache is not None and member == 0:
            cache.begin(ids)
        layers = [None] * len(self.blocks) if cache is None else cache.layers[member]
        x = self.dropout(self.embed(ids, cache))  # (B, T, C)
        for block, layer in zip(self.blocks, layers, strict=True):
            x = block(x, layer)
        if cache is not None and member == len(cache.layers) - 1:
            cache.end(T)
        return self.norm(x)  # (B, T, C)

    def embed(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the sum (B, T, C) of the character, n-gram and position embeddings of `ids`."""
        T = ids.shape[1]
        x: Tensor = self.token_embedding(ids)  # (B, T, C)
        for distance, table in enumerate(self.ngram_embeddings, start=1):
            if cache is not None and T == 1:
                before = cache.before(distance)  # (B, 1)
            else:  # shift the ids right, and fill the gap with MASKED
                before = F.pad(ids, (distance, 0), value=MASKED)[:, :T]  # (B, T)
            x += table(before)
        if self.position_embedding is not None:
            positions = slice(T) if cache is None else cache.positions
            vectors = self.position_embedding.weight[positions]  # (T, C) or (B, 1, 1, C)
            x = x + vectors.view(-1, T, x.shape[-1])
        return x


def initialize(model: GPT, generator: torch.Generator | None = None) -> None:
    """Set all parameters of a new model; draw random ones from `generator`.

    LayerNorm scales are 1. Biases, the output layer and the projections of attention and MLP are 0,
    so that every block starts as the identity. `qkv` and `expand` are drawn so that their outputs
    have variance 1/2; the embedding tables, so that their sum, the residual stream, has it. With a
    large vocabulary, the n-gram tables are 0: most of their rows are rarely trained, so random
    values would remain as noise.
    """
    named = dict(model.named_parameters())
    for name, p in named.items():
        nn.init.constant_(p, 1.0 if name.endswith("norm.weight") else 0.0)
        if name.endswith(("qkv.weight", "expand.weight")):
            nn.init.normal_(p, std=(0.5 / p.shape[1]) ** 0.5, generator=generator)
    is_large = model.head.out_features >= LARGE_VOCABULARY
    drawn = ("token", "position") if is_large else ("token", "ngram", "position")
    tables = [p for name, p in named.items() if name.startswith(drawn)]
    for p in tables:
        nn.init.normal_(p, std=(0.5 / len(tables)) ** 0.5, generator=generator)


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of logits (B, T, V) and target ids (B, T), in nats, in float32.

    `reduction` is `mean` or `sum` over the ids; `none` returns the loss of each id, (B * T,).
    """
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(0, 1), reduction=reduction)
