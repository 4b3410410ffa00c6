"""Rotary positions and the partial key offset, both on pairs of channels i and i + hs / 2.

B batch, H heads, T time, hs head_size.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.model.shapes import rotary_angles, staying_pairs


class Rotary(nn.Module):
    """Rotary positions (RoFormer, arXiv:2104.09864, section 3.2.2).

    Channels i and i + hs/2 of the query or key at position t are turned by t * 10000^(-2i/hs). The
    product of a query and a key then depends on their distance, not on their positions.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # by numpy, in float64: with several threads, torch's last digits once differed
        angles = rotary_angles(config.T, config.head_size)  # (T, hs / 2)
        for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
            float32 = torch.tensor(table, dtype=torch.float32, device="cpu")
            self.register_buffer(name, float32, persistent=False)

    def forward(self, x: Tensor, positions: slice | Tensor | None = None) -> Tensor:
        """Turn queries or keys (B, H, T, hs) at `positions`, by default 0 to T - 1."""
        positions = slice(x.shape[-2]) if positions is None else positions
        cos, sin = (table[positions].to(x.dtype) for table in (self.cos, self.sin))
        a, b = x.chunk(2, dim=-1)  # (B, H, T, hs / 2)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)  # (B, H, T, hs)


def split_offset(k: Tensor) -> tuple[Tensor, Tensor]:
    """Split keys (..., hs) into views (..., 2, n): channels that stay, and channels to offset.

    The channels to offset are those that rotary positions turn least. They encode which character
    it is, hardly where it is.
    """
    staying = staying_pairs(k.shape[-1])
    pairs = k.view(*k.shape[:-1], 2, -1)  # (..., 2, hs / 2)
    return pairs[..., :staying], pairs[..., staying:]


def offset_keys(k: Tensor) -> Tensor:
    """Replace half of each key's channels by those of the character before: (..., T, hs).

    A query that matches these channels attends to the character after the match: to what followed
    the last time, as an induction head does (arXiv:2209.11895). Without the offset, that takes two
    layers and many steps to learn. The first character gets zeros.

    It is the partial key offset of modded-nanogpt (pull request 169), which uses it in some layers.
    """
    staying, offset = split_offset(k)
    offset = F.pad(offset, (0, 0, 0, 0, 1, 0))[..., :-1, :, :]  # (..., T, 2, n)
    return torch.cat([staying, offset], dim=-1).flatten(-2)  # (..., T, hs)
