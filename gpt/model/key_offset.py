"""Partial key offset: half of a key's channels are those of the character before.

B batch, H heads, T time, hs head_size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.model.shapes import staying_pairs


def split_offset(k: Tensor) -> tuple[Tensor, Tensor]:
    """Keys (..., hs) -> views (..., 2, n): the channels that stay, and those that are offset.

    The latter, of pairs from `staying_pairs` on, say what a character is, and hardly where.
    """
    staying = staying_pairs(k.shape[-1])
    pairs = k.view(*k.shape[:-1], 2, -1)  # (..., 2, hs / 2): channels i and i + hs / 2
    return pairs[..., :staying], pairs[..., staying:]


def offset_keys(k: Tensor) -> Tensor:
    """Keys (..., T, hs) -> (..., T, hs): half of the channels are those of the character before.

    A query that matches these attends to the character *after* the match: to what followed the
    last time, as an induction head does (arXiv:2209.11895). That takes two layers otherwise, or
    one whose keys have n-gram embeddings, and many steps to come about. Partial key offset, of
    modded-nanogpt (pull request 169), which offsets channels that are not rotated, in some layers.
    Before the first character stands nothing: zeros.
    """
    staying, offset = split_offset(k)
    offset = F.pad(offset, (0, 0, 0, 0, 1, 0))[..., :-1, :, :]  # (..., T, 2, n)
    return torch.cat([staying, offset], dim=-1).flatten(-2)
