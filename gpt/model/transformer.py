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
from gpt.model.cache import Cache, LayerCache
from gpt.model.dropout import Dropout
from gpt.model.rotary import Rotary
from gpt.text.vocabulary import MASKED

# From this V on a step of training waits for the head, and most characters are rare. Models of
# smaller ones are what they are, digit for digit, whatever is done for large ones.
LARGE_VOCABULARY = 1000


class SquaredReLU(torch.autograd.Function):
    """relu(x)^2 (Primer, arXiv:2109.08668), with the gradient 2 relu(x) written out.

    Left to autograd, it goes over the MLP's wide activations three times more: an eighth of a step.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """The gradient of the output -> that of the input."""
        (positive,) = ctx.saved_tensors
        gradient: Tensor = gradients[0] * positive
        return gradient.mul_(2)


def relu2(x: Tensor) -> Tensor:
    """Zero for the negative, x^2 for the positive."""
    squared: Tensor = SquaredReLU.apply(x)  # type: ignore[no-untyped-call]
    return squared


class MLP(nn.Module):
    """Two linear layers and an activation between: what each character makes of what it gathered.

    The activation is GELU (arXiv:1606.08415) or ReLU squared.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.expand = nn.Linear(config.C, 4 * config.C)
        self.projection = nn.Linear(4 * config.C, config.C)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = self.expand(x)  # (B, T, 4 C)
        x = relu2(x) if self.activation == "relu2" else F.gelu(x, approximate="tanh")
        out: Tensor = self.dropout(self.projection(x))
        return out


class Block(nn.Module):
    """Attention, then MLP, each on a normalised copy of the stream and added back to it.

    LayerNorm before each part, as in GPT-2 (arXiv:2002.04745 says why this trains better).
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
        """(B, T, C) -> (B, T, C); for `ablated_head` see `CausalSelfAttention.forward`."""
        x = x + self.attention(self.attention_norm(x), cache, ablated_head)
        x = x + self.mlp(self.mlp_norm(x))
        return x


class TokenEmbedding(nn.Embedding):
    """A vector for each id, and zeros for MASKED."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, T) -> (B, T, C)."""
        vectors = super().forward(input.clamp(min=0))
        return vectors.masked_fill((input == MASKED)[..., None], 0.0)


class GPT(nn.Module):
    """Ids in, logits out. `config.T` is the longest text it takes; `vocabulary_size` is V.

    With `ngram` n, what a character adds to the stream depends on the n - 1 before it too: a table
    of vectors for each distance, summed. The blocks need not spend heads on spelling.

    A new model knows nothing: its head is zero, so each of the V characters is equally
    likely and the loss is ln V. All other weights are drawn from `generator`.
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
        self.float()  # whatever torch's default dtype is
        initialize(self, generator)

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T) ids -> (B, T, V) logits; row t predicts the character after t.

        MASKED ids add nothing to the stream.

        With a cache, the ids continue the texts in it, and are appended to them.
        Raises ValueError for more than `config.T` characters.
        """
        logits: Tensor = self.head(self.hidden(ids, cache))  # (B, T, V)
        return logits

    def hidden(
        self, ids: Tensor, cache: Cache | None = None, streams: list[Tensor] | None = None
    ) -> Tensor:
        """(B, T) ids -> (B, T, C): what the head is given; see `forward`.

        Append to `streams` the n_layer + 1 residual streams (B, T, C): before each block, and after
        the last.
        """
        T = ids.shape[1]
        if T > self.config.T:
            raise ValueError(f"expected at most T = {self.config.T} characters, got {T}")
        if cache is not None:
            cache.begin(ids)
        x = self.dropout(self.embed(ids, cache))
        for i, block in enumerate(self.blocks):
            if streams is not None:
                streams.append(x)
            x = block(x, cache.layers[i] if cache is not None else None)
        if streams is not None:
            streams.append(x)
        if cache is not None:
            cache.end(T)
        normalised: Tensor = self.norm(x)  # (B, T, C)
        return normalised

    def embed(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T) ids -> (B, T, C): what each character, those just before it and its place add."""
        T = ids.shape[1]
        x: Tensor = self.token_embedding(ids)  # (B, T, C)
        for distance, table in enumerate(self.ngram_embeddings, start=1):
            if cache is not None and T == 1:
                before = cache.before(distance)
            else:  # moved right; before the first stands nothing
                before = F.pad(ids, (distance, 0), value=MASKED)[:, :T]
            x = x + table(before)
        if self.position_embedding is not None:
            places = slice(T) if cache is None else cache.positions
            x = x + self.position_embedding.weight[places].view(
                -1, T, x.shape[-1]
            )  # (T, C) to each of B
        return x


def initialize(model: GPT, generator: torch.Generator | None = None) -> None:
    """Set every parameter by the first rule that its name matches; draws follow the rules' order.

    A stream of variance 1/2 that every block hands on as it is, until it has learnt to add: the
    tables whose rows are added up share that variance; what a layer makes of a normalised stream
    has variance 1/2 too; what adds to the stream begins at zero, and so does the head. Of a large
    vocabulary the n-gram tables do, too: most of their rows are seldom seen, and would be noise.

    Raises ValueError for a parameter that no rule covers.
    """
    tables = sum(isinstance(module, nn.Embedding) for module in model.modules())
    zero = r"head\.weight|.*projection\.weight|.*bias"
    if model.head.out_features >= LARGE_VOCABULARY:
        zero += r"|ngram_embeddings.*"
        tables -= len(model.ngram_embeddings)
    rules: dict[str, Callable[[Tensor], object]] = {
        zero: nn.init.zeros_,
        r".*(qkv|expand)\.weight": lambda p: nn.init.normal_(
            p, std=(0.5 / p.shape[1]) ** 0.5, generator=generator
        ),
        r"\w+_embeddings?(\.\d+)?\.weight": lambda p: nn.init.normal_(
            p, std=(0.5 / tables) ** 0.5, generator=generator
        ),
        r".*norm\.weight": nn.init.ones_,
    }
    left = dict(model.named_parameters())
    for pattern, fill in rules.items():
        for name in [name for name in left if re.fullmatch(pattern, name)]:
            fill(left.pop(name))
    if left:
        raise ValueError(
            f"expected a rule of initialisation for every parameter, none for {[*left]}"
        )


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Nats per character: -log of the probability given to each target, averaged or summed.

    logits (B, T, V) in any precision; targets (B, T), or a distribution of them, (B, T, V).
    Computed in float32.
    """
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(0, 1), reduction=reduction)


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Parameters by part, in the order in which a character meets them; of all members together."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        name = re.sub(r"^members\.\d+\.", "", name)
        part = name.split(".")[0]
        if part == "blocks":
            part = name.split(".")[2]  # blocks.0.attention.qkv.weight -> attention
        part = {"norm": "norms", "attention_norm": "norms", "mlp_norm": "norms"}.get(part, part)
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts
