"""Causal self-attention: each character gathers values from itself and from earlier characters.

B  batch: number of texts            T  time: number of characters of each text
C  channels of the residual stream
H  heads (n_head), each with its own queries, keys and values
hs channels of a query or a key (`head_size`)
vs channels of a value (`value_size`)
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.model.dropout import Dropout
from gpt.model.keys_and_values import LayerCache, Rotary, offset_keys


class CausalSelfAttention(nn.Module):
    """Masked multi-head attention ("Attention Is All You Need", arXiv:1706.03762, section 3.2).

    One matrix product computes the queries, keys (head_size channels) and values (value_size
    channels) of all heads. The heads' outputs are concatenated and projected to C channels.

    With `qk_norm`, queries and keys are normalised (arXiv:2302.05442, section 2). The scores are
    then bounded, which limits how sharp attention can become. `attention_scale` > 1 raises the
    bound. With `key_offset`, half of each key comes from the previous character (`offset_keys`).
    All layers of a model share one `rotary` module, whose tables take much memory if T is large.
    """

    def __init__(self, config: ModelConfig, rotary: Rotary | None = None) -> None:
        super().__init__()
        self.n_head, self.qk_norm = config.n_head, config.qk_norm
        self.key_offset = config.key_offset
        self.scale = config.attention_scale * config.head_size**-0.5
        q_rows, v_rows = config.n_head * config.head_size, config.n_head * config.value_size
        self.sizes = [q_rows, q_rows, v_rows]  # rows of `qkv.weight` for queries, keys, values
        self.qkv = nn.Linear(config.C, sum(self.sizes), bias=config.qkv_bias)
        self.projection = nn.Linear(v_rows, config.C)
        self.dropout = Dropout(config.dropout)
        self.rotary = (rotary or Rotary(config)) if config.positions == "rotary" else None

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Compute attention by the fastest kernel for the device and precision.

        Args:
            x: (B, T, C), the normalised residual stream.
            cache: keys and values of earlier characters. Those of x are appended. The queries of
                x attend to both.

        Returns:
            (B, T, C), to be added to the residual stream.
        """
        T = x.shape[1]
        q, k, v = self.heads(x, None if cache is None else cache.parent.positions)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, H, characters so far, hs or vs)
            # T > 1 only for an empty cache, which has no mask
            y = F.scaled_dot_product_attention(
                q, k, v, cache.parent.mask, is_causal=T > 1, scale=self.scale
            )
        elif stores_weights(q.device, q.dtype, T):
            y, _ = self.weigh(q, k, v)
        else:  # the steps of `weigh` in one kernel, which stores no (T, T) matrix
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.join(y)

    def explicit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute attention step by step; return the output (B, T, C) and weights (B, H, T, T)."""
        y, weights = self.weigh(*self.heads(x))
        return self.join(y), weights

    def weigh(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted sums of the values (B, H, T, vs) and weights (B, H, T, T).

        `weights[..., t, s]` is the weight of the value at position s in the sum at position t. Up
        to rounding, the scores equal these steps of the paper, which take twice as long::

            scores = scale * q @ k.transpose(-2, -1)
            later = torch.ones(T, T, dtype=torch.bool).triu(diagonal=1)
            scores = scores.masked_fill(later, float("-inf"))
        """
        B, H, T, _ = q.shape
        mask = torch.full((T, T), float("-inf"), dtype=q.dtype, device=q.device).triu(diagonal=1)
        queries, keys = q.flatten(0, 1), k.flatten(0, 1)  # (B H, T, hs)
        scores = torch.baddbmm(mask, queries, keys.transpose(-2, -1), alpha=self.scale)
        weights = F.softmax(scores.view(B, H, T, T), dim=-1)  # each row sums to 1
        return weights @ v, weights  # (B, H, T, T) @ (B, H, T, vs) -> (B, H, T, vs)

    def heads(
        self, x: Tensor, positions: slice | Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute q and k (B, H, T, hs) and v (B, H, T, vs) of all heads from x (B, T, C).

        `positions` are the positions of x in a cache; None without a cache. Without a cache, x
        begins at position 0, and `key_offset` is applied here. A cache applies it later.
        """
        B, T, _ = x.shape
        q_rows, k_rows, v_rows = self.sizes
        qk, v = self.qkv(x).split([q_rows + k_rows, v_rows], dim=-1)  # (B, T, 2 H hs), (B, T, H vs)
        qk = qk.view(B, T, 2 * self.n_head, -1).transpose(1, 2)  # (B, 2 H, T, hs)
        if self.qk_norm:
            # on CUDA, autocast would compute this, and then the rotation, in float32
            with torch.autocast(qk.device.type, enabled=False):
                qk = F.layer_norm(qk, qk.shape[-1:])
        if self.rotary is not None:
            qk = self.rotary(qk, positions)
        q, k = qk.chunk(2, dim=1)  # (B, H, T, hs) each
        if self.key_offset and positions is None:
            k = offset_keys(k)
        return q, k, v.view(B, T, self.n_head, -1).transpose(1, 2)  # v: (B, H, T, vs)

    def join(self, y: Tensor) -> Tensor:
        """Concatenate and project the heads' outputs: (B, H, T, vs) -> (B, T, C)."""
        B, _, T, _ = y.shape
        y = y.transpose(1, 2).reshape(B, T, -1)  # (B, T, H vs)
        return self.dropout(self.projection(y))  # (B, T, C)


def stores_weights(device: torch.device, dtype: torch.dtype, T: int) -> bool:
    """Return whether a forward pass without a cache stores the attention weights of each head.

    torch's bfloat16 kernel for CPUs, which does not store them, takes three times as long.
    """
    return device.type == "cpu" and dtype == torch.bfloat16 and T <= 512
