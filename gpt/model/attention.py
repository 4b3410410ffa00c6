"""Causal self-attention: each character gathers what it needs from itself and those before it.

B  batch: texts side by side, which never talk to each other
T  time: the place of a character in its text
C  channels of the residual stream
H  heads; each attends for itself (n_head)
hs head_size: channels of a query and a key      vs value_size: channels of a value
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.model.cache import LayerCache
from gpt.model.dropout import Dropout
from gpt.model.key_offset import offset_keys
from gpt.model.rotary import Rotary


class CausalSelfAttention(nn.Module):
    """Masked multi-head attention ("Attention Is All You Need", arXiv:1706.03762, section 3.2).

    Queries, keys and values of all heads come from one matrix product. H x hs need not equal C:
    the heads' outputs, H x vs channels, are projected back to C. With `qk_norm` queries and keys
    are normalised first (arXiv:2302.05442, section 2), so that no score can run away, nor grow as
    sharp as it could: `attention_scale` above 1 makes up for that. With `key_offset`, keys are
    those of `offset_keys`. The layers of a model share one `rotary`, whose table grows with T.
    """

    def __init__(self, config: ModelConfig, rotary: Rotary | None = None) -> None:
        super().__init__()
        self.n_head, self.qk_norm = config.n_head, config.qk_norm
        self.key_offset = config.key_offset
        self.scale = config.attention_scale * config.head_size**-0.5
        self.sizes = [  # rows of the matrix that make queries, keys, values
            config.n_head * size for size in (config.head_size, config.head_size, config.value_size)
        ]
        self.qkv = nn.Linear(config.C, sum(self.sizes), bias=config.qkv_bias)
        self.projection = nn.Linear(self.sizes[2], config.C)
        self.attention_dropout = Dropout(config.attention_dropout)  # of the weights
        self.dropout = Dropout(config.dropout)
        self.rotary = (rotary or Rotary(config)) if config.positions == "rotary" else None

    def forward(
        self, x: Tensor, cache: LayerCache | None = None, ablated_head: int | None = None
    ) -> Tensor:
        """(B, T, C) -> (B, T, C). With a cache, x attends to what is in it too, and joins it.

        The output of `ablated_head`, counted from 0, is zero before the projection.
        """
        T = x.shape[1]
        if cache is not None:
            q, k, v = self.heads(x, cache.parent.positions)
            k, v = cache.append(k, v)
            y = F.scaled_dot_product_attention(
                q, k, v, cache.parent.mask, is_causal=T > 1, scale=self.scale
            )
            return self.join(y)
        q, k, v = self.heads(x)
        drops = self.training and self.attention_dropout.p > 0
        if drops or (q.is_cpu and q.dtype == torch.bfloat16 and T <= 512):
            # fused kernels draw masks from torch's global generator, if they can at all; and a
            # CPU's takes three times as long in bfloat16
            y, _ = self.weigh(q, k, v)
        else:
            # (T, T) never exists
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        if ablated_head is not None:
            y = y.clone()
            y[:, ablated_head] = 0
        return self.join(y)

    def explicit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same step by step: (B, T, C) -> output (B, T, C) and weights (B, H, T, T)."""
        y, weights = self.weigh(*self.heads(x))
        return self.join(y), weights

    def weigh(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """q, k (B, H, T, hs), v (B, H, T, vs) -> (B, H, T, vs) and the weights (B, H, T, T).

        Row t of the weights says how much of each character's value goes to character t. In
        training they are after dropout: some are zero, the others larger by 1 / (1 - p).
        """
        B, H, T, _ = q.shape
        future = torch.full((T, T), float("-inf"), dtype=q.dtype, device=q.device).triu(diagonal=1)
        q, k = q.flatten(0, 1), k.flatten(0, 1)
        # future + scale q k^T in one pass over (B H, T, T), which takes half the time of three
        scores = torch.baddbmm(future, q, k.transpose(-2, -1), alpha=self.scale)
        weights = self.attention_dropout(F.softmax(scores, dim=-1).view(B, H, T, T))
        return weights @ v, weights

    def heads(
        self, x: Tensor, places: slice | Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, C) -> queries and keys (B, H, T, hs), values (B, H, T, vs).

        `places` says where in their text the T characters stand, if they continue what is in a
        cache, which offsets the keys itself.
        """
        B, T, _ = x.shape
        queries, keys, values = self.sizes
        qk, v = self.qkv(x).split([queries + keys, values], dim=-1)
        qk = qk.view(B, T, 2 * self.n_head, -1).transpose(1, 2)  # (B, 2 H, T, hs): both alike
        if self.qk_norm:
            qk = F.layer_norm(qk, qk.shape[-1:])
        if self.rotary is not None:
            qk = self.rotary(qk, places)
        q, k = qk.chunk(2, dim=1)
        if self.key_offset and places is None:
            k = offset_keys(k)
        return q, k, v.view(B, T, self.n_head, -1).transpose(1, 2)

    def join(self, y: Tensor) -> Tensor:
        """(B, H, T, vs) -> (B, T, C): the heads side by side, projected back."""
        B, _, T, _ = y.shape
        y = y.transpose(1, 2).reshape(B, T, -1)  # (B, T, H * vs)
        out: Tensor = self.dropout(self.projection(y))
        return out
