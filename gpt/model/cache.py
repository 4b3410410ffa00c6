"""The key-value cache: what need not be computed again for the characters so far."""

import torch
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.model.key_offset import split_offset
from gpt.text.vocabulary import MASKED


class Cache:
    """Keys and values of B texts, each with a length of its own, with room for T characters.

    `model(ids, cache)` with ids (B, t) prefills an empty cache with the first t characters of each
    text, and with ids (B, 1) appends one character to each. Its logits are those of the whole
    texts.
    """

    def __init__(self, config: ModelConfig, B: int, device: torch.device) -> None:
        self.T = config.T
        self.lengths = [0] * B  # characters of each text
        self.lengths_there = torch.zeros(B, dtype=torch.long, device=device)  # where the model is
        self.ids = torch.zeros(B, config.T, dtype=torch.long, device=device)
        self.layers = [LayerCache(self, config, B, device) for _ in range(config.n_layer)]
        self.positions: slice | Tensor = slice(0, 0)  # of the characters being appended
        self.mask: Tensor | None = None  # (B, 1, 1, T): which characters each text has

    def begin(self, ids: Tensor) -> None:
        """Take in the ids (B, t) whose keys and values are about to be appended.

        Raises ValueError if there is no room for them, or for t > 1 unless the cache is empty.
        """
        t, longest = ids.shape[1], max(self.lengths)
        if longest + t > self.T or (t > 1 and longest):
            raise ValueError(
                f"expected one character more, and at most T = {self.T} in all; got {t} after "
                f"{longest}"
            )
        if ids.is_cpu and longest == min(self.lengths):  # no need for a mask
            self.positions, self.mask = slice(longest, longest + t), None
            self.ids[:, self.positions] = ids
        elif t > 1:
            self.positions, self.mask = slice(0, t), None
            self.ids[:, :t] = ids
        else:  # shapes that never change, and no synchronisation
            self.positions = self.lengths_there.view(-1, 1, 1)
            self.ids.scatter_(1, self.lengths_there[:, None], ids)
            self.mask = torch.arange(self.T, device=ids.device) <= self.positions[..., None]

    def end(self, t: int) -> None:
        """The keys and values of t characters have been appended."""
        self.lengths = [length + t for length in self.lengths]
        self.lengths_there += t

    def before(self, distance: int) -> Tensor:
        """The ids (B, 1) that far before the one being appended; MASKED before the first."""
        positions = self.lengths_there[:, None] - distance
        return self.ids.gather(1, positions.clamp(min=0)).masked_fill(positions < 0, MASKED)

    def set_lengths(self, lengths: list[int]) -> None:
        """Forget what comes after the first `lengths[b]` characters of text b."""
        self.lengths = lengths
        self.lengths_there.copy_(torch.tensor(lengths, device="cpu"))

    def tensors(self) -> list[Tensor]:
        """All that is cached of each text, (B, ...)."""
        return [
            self.lengths_there,
            self.ids,
            *(t for layer in self.layers for t in (layer.keys, layer.values)),
        ]

    def replace(self, rows: list[int], other: "Cache") -> None:
        """Replace the texts in these rows by those of another cache."""
        index = torch.tensor(rows, dtype=torch.long, device=self.ids.device)
        for row, length in zip(rows, other.lengths, strict=True):
            self.lengths[row] = length
        for mine, new in zip(self.tensors(), other.tensors(), strict=True):
            mine.index_copy_(0, index, new)

    def fork(self, row: int, rows: list[int]) -> None:
        """Replace the texts in `rows` by that in `row`."""
        index = torch.tensor(rows, dtype=torch.long, device=self.ids.device)
        for other in rows:
            self.lengths[other] = self.lengths[row]
        for tensor in self.tensors():
            tensor.index_copy_(0, index, tensor[torch.full_like(index, row)])

    def select(self, rows: list[int]) -> None:
        """Drop the texts in the other rows."""
        index = torch.tensor(rows, dtype=torch.long, device=self.ids.device)
        self.lengths = [self.lengths[row] for row in rows]
        self.lengths_there, self.ids = self.lengths_there[index], self.ids[index]
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[index], layer.values[index]


class EnsembleCache:
    """A cache for each member of an ensemble; see `Cache`."""

    def __init__(self, config: ModelConfig, B: int, device: torch.device) -> None:
        self.members = [Cache(config, B, device) for _ in range(config.ensemble)]

    @property
    def lengths(self) -> list[int]:
        """Characters of each text."""
        return self.members[0].lengths

    @lengths.setter
    def lengths(self, lengths: list[int]) -> None:
        for cache in self.members:
            cache.lengths = lengths

    def set_lengths(self, lengths: list[int]) -> None:
        """See Cache."""
        for cache in self.members:
            cache.set_lengths(lengths)

    def replace(self, rows: list[int], other: "EnsembleCache") -> None:
        """See Cache."""
        for cache, new in zip(self.members, other.members, strict=True):
            cache.replace(rows, new)

    def fork(self, row: int, rows: list[int]) -> None:
        """See Cache."""
        for cache in self.members:
            cache.fork(row, rows)

    def select(self, rows: list[int]) -> None:
        """See Cache."""
        for cache in self.members:
            cache.select(rows)


class LayerCache:
    """The part of one layer: keys (B, H, T, hs) and values (B, H, T, vs).

    With `key_offset`, keys have room for one character more: half of what is appended of each
    belongs to the next (see `offset_keys`).
    """

    def __init__(self, cache: Cache, config: ModelConfig, B: int, device: torch.device) -> None:
        self.parent, self.key_offset = cache, config.key_offset
        self.keys, self.values = (
            torch.zeros(B, config.n_head, room, size, dtype=torch.float32, device=device)
            for room, size in (
                (config.T + config.key_offset, config.head_size),
                (config.T, config.value_size),
            )
        )

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, H, t, size) each; return all so far (or T, to be masked)."""
        positions = self.parent.positions
        if self.key_offset:
            for later, (cached, new) in enumerate(
                zip(split_offset(self.keys), split_offset(keys), strict=True)
            ):
                _write(cached, new, positions, later)
        else:
            _write(self.keys, keys, positions)
        _write(self.values, values, positions)
        end = positions.stop if isinstance(positions, slice) else self.parent.T
        return self.keys[:, :, :end], self.values[:, :, :end]


def _write(cached: Tensor, new: Tensor, positions: slice | Tensor, later: int = 0) -> None:
    """Set what is cached (B, H, T, ...) of the characters at `positions`, or so many later."""
    if isinstance(positions, slice):
        cached[:, :, positions.start + later : positions.stop + later] = new
    else:  # (B, 1, 1)
        index = positions.view(-1, *[1] * (new.ndim - 1)) + later
        cached.scatter_(2, index.expand_as(new), new)
