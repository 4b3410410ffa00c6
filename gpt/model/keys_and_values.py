"""Keys and values of attention: rotary positions, the partial key offset, and the cache.

Shapes: B batch, H heads, T time, hs head_size.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.model.shapes import kept_pairs, rotary_angles
from gpt.text.vocabulary import MASKED


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

    Return two views: (..., 2, P) and (..., 2, hs / 2 - P), where P is `kept_pairs(hs)`.
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


class Cache:
    """Keys and values of B texts of at most T ids, stored so that each is computed only once.

    Prefill: `model(ids, cache)` with ids (B, t) stores the first t characters of each text in an
    empty cache. Decode: `model(ids, cache)` with ids (B, 1) appends one character to each text; the
    texts may then differ in length. The logits equal those of a forward pass over the whole texts.
    """

    def __init__(self, config: ModelConfig, B: int, device: torch.device) -> None:
        self.T = config.T
        self.lengths = [0] * B  # number of stored characters of each text
        self.lengths_on_device = torch.zeros(B, dtype=torch.long, device=device)
        self.ids = torch.zeros(B, config.T, dtype=torch.long, device=device)
        self.layers = [  # the layers of each member of an ensemble
            [LayerCache(self, config, B, device) for _ in range(config.n_layer)]
            for _ in range(config.ensemble)
        ]
        # positions of the characters that are being appended
        self.positions: slice | Tensor = slice(0, 0)
        self.mask: Tensor | None = None  # (B, 1, 1, T): True for characters to attend to

    def begin(self, ids: Tensor) -> None:
        """Prepare the cache for a forward pass that appends `ids` (B, t) to the texts.

        Store `ids`, and set the attributes `positions` and `mask` for the layers. If t > 1, all
        texts must be empty.
        """
        t, longest = ids.shape[1], max(self.lengths)
        if t > 1 or (ids.is_cpu and longest == min(self.lengths)):  # equal lengths need no mask
            self.positions, self.mask = slice(longest, longest + t), None
            self.ids[:, self.positions] = ids
        else:  # a CUDA graph needs constant shapes and no synchronisation
            self.positions = self.lengths_on_device.view(-1, 1, 1)
            self.ids.scatter_(1, self.lengths_on_device[:, None], ids)
            self.mask = torch.arange(self.T, device=ids.device) <= self.positions[..., None]

    def end(self, t: int) -> None:
        """Increase all lengths by `t`, after all layers have appended `t` characters."""
        self.lengths = [length + t for length in self.lengths]
        self.lengths_on_device += t

    def before(self, distance: int) -> Tensor:
        """Return the id `distance` characters before each text's newest character, (B, 1).

        The id is MASKED if fewer than `distance` characters precede the newest one.
        """
        positions = self.lengths_on_device[:, None] - distance
        return self.ids.gather(1, positions.clamp(min=0)).masked_fill(positions < 0, MASKED)

    def set_lengths(self, lengths: list[int]) -> None:
        """Truncate each text b to its first `lengths[b]` characters."""
        self.lengths = lengths
        self.lengths_on_device.copy_(torch.tensor(lengths, device="cpu"))

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the cache, each (B, ...), with one row for each text."""
        layers = [layer for layers in self.layers for layer in layers]
        cached = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        return [self.lengths_on_device, self.ids, *cached]

    def replace(self, rows: Sequence[int], other: "Cache", other_rows: Sequence[int]) -> None:
        """Replace the texts in `rows` by the texts in `other_rows` of the cache `other`."""
        indices = torch.tensor([[*rows], [*other_rows]], dtype=torch.long, device=self.ids.device)
        to, origin = indices
        for tensor, new in zip(self.tensors(), other.tensors(), strict=True):
            tensor.index_copy_(0, to, new[origin])
        for row, other_row in zip(rows, other_rows, strict=True):
            self.lengths[row] = other.lengths[other_row]


class LayerCache:
    """Keys (B, heads, T, head_size) and values (B, heads, T, value_size) of one layer.

    With `key_offset`, each character sets half of the next character's key (`offset_keys`), and so
    does the last of T characters: `keys` then has T + 1 positions.
    """

    def __init__(self, cache: Cache, config: ModelConfig, B: int, device: torch.device) -> None:
        self.parent, self.key_offset = cache, config.key_offset
        H, T = config.n_head, config.T
        keys, values = (B, H, T + config.key_offset, config.head_size), (B, H, T, config.value_size)
        self.keys = torch.zeros(keys, dtype=torch.float32, device=device)
        self.values = torch.zeros(values, dtype=torch.float32, device=device)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append `keys` and `values` (B, heads, t, size); return all stored keys and values.

        If the cache has a mask, T keys and values are returned. The mask excludes those after the
        end of each text.
        """
        positions = self.parent.positions
        _write(self.values, values, positions)
        if self.key_offset:
            cached, new = split_offset(self.keys), split_offset(keys)
            _write(cached[0], new[0], positions)
            _write(cached[1], new[1], positions, shift=1)
        else:
            _write(self.keys, keys, positions)
        end = positions.stop if isinstance(positions, slice) else self.parent.T
        return self.keys[:, :, :end], self.values[:, :, :end]


def _write(cached: Tensor, new: Tensor, positions: slice | Tensor, shift: int = 0) -> None:
    """Write `new` into dimension 2 of `cached`, at `positions` + `shift`."""
    if isinstance(positions, slice):
        cached[:, :, positions.start + shift : positions.stop + shift] = new
    else:  # `positions` has one position for each text, (B, 1, 1)
        index = positions.view(-1, *[1] * (new.ndim - 1)) + shift
        cached.scatter_(2, index.expand_as(new), new)
