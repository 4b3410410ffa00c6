"""Rotary positions and the partial key offset. Both use pairs of channels i and i + hs / 2.

The partial key offset replaces about half of the channels of a key by those of the previous key.

Shapes: B batch, H heads, T time, hs head_size.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.model.shapes import kept_pairs, rotary_angles


class Rotary(nn.Module):
    """Rotary positions (RoFormer, arXiv:2104.09864, section 3.2.2).

    Channels i and i + hs/2 (hs: head_size) of a query or key at position t are rotated as a pair,
    by the angle t * 10000^(-2i/hs) in radians. The dot product of a query and a key then depends on
    the distance between their positions, not on the positions themselves.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # numpy in float64, because torch's last digits may depend on the number of threads
        angles = rotary_angles(config.T, config.head_size)  # (T, hs / 2)
        cos, sin = np.cos(angles), np.sin(angles)
        for name, halves in (("cos", (cos, cos)), ("sin", (-sin, sin))):
            table = np.concatenate(halves, axis=1)  # (T, hs)
            float32 = torch.tensor(table, dtype=torch.float32, device="cpu")
            self.register_buffer(name, float32, persistent=False)

    def forward(self, x: Tensor, positions: slice | Tensor | None = None) -> Tensor:
        """Rotate queries or keys x (B, H, T, head_size) by `positions`, by default 0 to T - 1."""
        positions = slice(x.shape[-2]) if positions is None else positions
        cos, sin = (table[positions].to(x.dtype) for table in (self.cos, self.sin))
        # a pair (a, b) becomes (a cos - b sin, b cos + a sin)
        partners = x.roll(x.shape[-1] // 2, dims=-1)  # (B, H, T, hs)
        return torch.addcmul(x * cos, partners, sin)


def split_offset(k: Tensor) -> tuple[Tensor, Tensor]:
    """Split keys (..., head_size) into the channels that `offset_keys` keeps and those it replaces.

    Channels i and i + head_size / 2 are a pair. `offset_keys` replaces the last pairs, which
    rotary positions rotate least.

    Returns:
        Views of the kept and of the replaced channels, each (..., 2, number of pairs).
    """
    kept = kept_pairs(k.shape[-1])
    pairs = k.view(*k.shape[:-1], 2, -1)  # (..., 2, hs / 2)
    return pairs[..., :kept], pairs[..., kept:]


def offset_keys(k: Tensor) -> Tensor:
    """Replace about half of the channels of keys (..., T, head_size) by those of the previous key.

    The first key gets zeros. The replaced channels depend on the previous character: a query that
    looks for `e` in these channels attends to the character after an `e`. One head can thus find
    what followed an earlier `e`; an induction head (arXiv:2209.11895) needs two layers for this.
    This is the partial key offset of modded-nanogpt (pull request 169).
    """
    kept, offset = split_offset(k)
    offset = F.pad(offset, (0, 0, 0, 0, 1, 0))[..., :-1, :, :]  # (..., T, 2, P)
    return torch.cat([kept, offset], dim=-1).flatten(-2)  # (..., T, hs)
