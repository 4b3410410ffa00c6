"""A decoder-only transformer: embeddings, pre-LayerNorm blocks, logits.

B batch, T time, C channels, V vocabulary size; see attention.py for the letters of a head.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gpt.config.schema import ModelConfig
from gpt.device import SkipInitialization
from gpt.model.attention import CausalSelfAttention
from gpt.model.dropout import Dropout
from gpt.model.kv_cache import Cache, LayerCache
from gpt.model.rotary import Rotary
from gpt.text.vocabulary import MASKED

# Vocabulary size from which the head takes most of a step and most characters are rare. What is
# done for large vocabularies leaves the digits of smaller ones as they are.
LARGE_VOCABULARY = 1000


class SquaredReLU(torch.autograd.Function):
    """relu(x)^2 (Primer, arXiv:2109.08668), with the gradient 2 relu(x) written out.

    Autograd would pass three more times over the MLP's wide activations: an eighth of a step.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Square the positive numbers, and set the others to zero."""
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Compute the gradient of the input from that of the output."""
        (positive,) = ctx.saved_tensors
        gradient: Tensor = gradients[0] * positive
        return gradient.mul_(2)


relu2: Callable[[Tensor], Tensor] = SquaredReLU.apply


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
        x = self.expand(x)  # (B, T, 4 C)
        x = relu2(x) if self.activation == "relu2" else F.gelu(x, approximate="tanh")
        out: Tensor = self.dropout(self.projection(x))  # (B, T, C)
        return out


class Block(nn.Module):
    """Attention, then MLP; each reads a normalised copy of the stream and adds to the stream.

    LayerNorm stands before each part, as in GPT-2 (arXiv:2002.04745 explains why this trains
    better).
    """

    def __init__(self, config: ModelConfig, rotary: Rotary | None = None) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.C)
        self.attention = CausalSelfAttention(config, rotary)
        self.mlp_norm = nn.LayerNorm(config.C)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, cache: LayerCache | None = None, ablated_head: int | None = None
    ) -> Tensor:
        """Map (B, T, C) to (B, T, C). For the arguments see `CausalSelfAttention.forward`."""
        x = x + self.attention(self.attention_norm(x), cache, ablated_head)
        x = x + self.mlp(self.mlp_norm(x))
        return x


class TokenEmbedding(nn.Embedding):
    """A vector for each id, and zeros for MASKED."""

    def forward(self, input: Tensor) -> Tensor:
        """Map ids (B, T) to vectors (B, T, C)."""
        vectors = super().forward(input.clamp(min=0))
        return vectors.masked_fill((input == MASKED)[..., None], 0.0)


class GPT(nn.Module):
    """Transformer that maps ids to logits.

    With `config.ngram` n, a character's embedding also depends on the n - 1 characters before it:
    it is a sum of n vectors, each from the table of its distance. The blocks then need no heads
    for spelling.

    The head of a new model is zero, so each of the V characters is equally likely and the loss is
    ln V. All other weights are drawn from `generator`.
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
        self.float()  # also if torch's default dtype is another
        initialize(self, generator)

    def forward(self, ids: Tensor, cache: Cache | None = None, member: int = 0) -> Tensor:
        """Predict the next character at each position.

        Args:
            ids: (B, T), at most `config.T` characters each. MASKED ids have a zero embedding.
            cache: the texts that `ids` continue; `ids` are appended to them.
            member: this model's number in an ensemble whose members share `cache`.

        Returns:
            Logits (B, T, V); row t predicts the character after t.

        Raises:
            ValueError: there are too many characters.
        """
        logits: Tensor = self.head(self.hidden(ids, cache, member))  # (B, T, V)
        return logits

    def hidden(
        self,
        ids: Tensor,
        cache: Cache | None = None,
        member: int = 0,
        streams: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the input of the head (B, T, C); see `forward`.

        If `streams` is given, append the n_layer + 1 residual streams (B, T, C) to it: those before
        each block, and the one after the last.
        """
        T = ids.shape[1]
        if T > self.config.T:
            raise ValueError(f"expected at most T = {self.config.T} characters, got {T}")
        if cache is not None and member == 0:
            cache.begin(ids)
        layers = [None] * len(self.blocks) if cache is None else cache.layers[member]
        x = self.dropout(self.embed(ids, cache))  # (B, T, C)
        for block, layer in zip(self.blocks, layers, strict=True):
            if streams is not None:
                streams.append(x)
            x = block(x, layer)
        if streams is not None:
            streams.append(x)
        if cache is not None and member == len(cache.layers) - 1:
            cache.end(T)
        normalised: Tensor = self.norm(x)  # (B, T, C)
        return normalised

    def embed(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the sum of all embeddings (B, T, C) of ids (B, T): characters and positions."""
        T = ids.shape[1]
        x: Tensor = self.token_embedding(ids)  # (B, T, C)
        for distance, table in enumerate(self.ngram_embeddings, start=1):
            if cache is not None and T == 1:
                before = cache.before(distance)  # (B, 1)
            else:  # shift the ids right; MASKED precedes the first
                before = F.pad(ids, (distance, 0), value=MASKED)[:, :T]  # (B, T)
            x = x + table(before)
        if self.position_embedding is not None:
            positions = slice(T) if cache is None else cache.positions
            vectors = self.position_embedding.weight[positions]  # (T, C) or (B, 1, 1, C)
            x = x + vectors.view(-1, T, x.shape[-1])
        return x


def initialize(model: GPT, generator: torch.Generator | None = None) -> None:
    """Set all parameters.

    Every block starts as the identity on a residual stream of variance 1/2: the embedding tables,
    which are summed, share that variance, and whatever adds to the stream starts at zero. Layers
    on a normalised stream have outputs of variance 1/2. The head starts at zero. With a large
    vocabulary the n-gram tables start at zero, too, because most of their rows are rarely trained
    and would stay noise.
    """
    named = dict(model.named_parameters())
    for name, p in named.items():
        nn.init.constant_(p, 1.0 if name.endswith("norm.weight") else 0.0)
    for name, p in named.items():
        if name.endswith(("qkv.weight", "expand.weight")):
            nn.init.normal_(p, std=(0.5 / p.shape[1]) ** 0.5, generator=generator)
    large = model.head.out_features >= LARGE_VOCABULARY
    tables = [
        p for name, p in named.items() if "embedding" in name and not (large and "ngram" in name)
    ]
    for p in tables:
        nn.init.normal_(p, std=(0.5 / len(tables)) ** 0.5, generator=generator)


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Return the loss in nats per character, averaged or summed, computed in float32.

    Args:
        logits: (B, T, V), in any precision.
        targets: the characters (B, T), or a distribution of them (B, T, V).
        reduction: `mean` or `sum`.
    """
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(0, 1), reduction=reduction)


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Return the number of parameters of each part of the model, summed over all members."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = re.sub(r"^(members\.\d+\.)?(blocks\.\d+\.)?", "", name).split(".")[0]
        part = "norms" if part.endswith("norm") else part
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts
