"""Rotary positions: queries and keys are turned by an angle that grows with their position.

B batch, H heads, T time, hs head_size.
"""

import numpy as np
import torch
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.model.shapes import rotary_angles


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
