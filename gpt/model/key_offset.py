"""Partial key offset: half of a key's channels come from the character before.

B batch, H heads, T time, hs head_size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.model.shapes import staying_pairs


def split_offset(k: Tensor) -> tuple[Tensor, Tensor]:
    """Split keys (..., hs) into views (..., 2, n): channels that stay, and channels to offset.

    The channels to offset are those that rotary positions turn least. They encode which character
    it is, hardly where it is.
    """
    staying = staying_pairs(k.shape[-1])
    pairs = k.view(*k.shape[:-1], 2, -1)  # (..., 2, hs / 2): channels i and i + hs / 2
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
