"""The attention weights of all heads as one small picture, for TensorBoard. Needs no matplotlib."""

import torch
import torch.nn.functional as F
from torch import Tensor


def tile(weights: Tensor, scale: int = 4) -> Tensor:
    """(n_layer, H, T, T) -> one picture (height, width) in 0..255: layers down, heads across.

    Black is a weight of 1 and white 0; the square root between them, so that small weights show.
    """
    n_layer, H, T, _ = weights.shape
    maps = F.pad(1 - weights.sqrt(), (0, 1, 0, 1), value=0.5)  # a grey line between maps
    maps = maps.permute(0, 2, 1, 3).reshape(n_layer * (T + 1), H * (T + 1))
    maps = maps.repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    return (255 * maps).round().to(torch.uint8)
