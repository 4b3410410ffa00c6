"""What need not be computed twice: the keys and values of the characters already read."""

import torch
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.text.vocabulary import MASKED


class Cache:
    """B texts as far as a model has read them, each at its own place, with room for T characters.

    `model(ids, cache)` with ids (B, t) reads the first t characters of each text into an empty
    cache, and with ids (B, 1) the next character of each. Its logits are those of the whole texts.
    """

    def __init__(self, config: ModelConfig, B: int, device: torch.device) -> None:
        self.T = config.T
        self.lengths = [0] * B  # characters read of each text
        self.ends = torch.zeros(B, dtype=torch.long, device=device)  # the same, where the model is
        self.ids = torch.zeros(B, config.T, dtype=torch.long, device=device)
        self.layers = [LayerCache(self, config, B, device) for _ in range(config.n_layer)]
        self.places: slice | Tensor = slice(0, 0)  # of the characters being read
        self.mask: Tensor | None = None  # (B, 1, 1, T): which characters each text has

    def begin(self, ids: Tensor) -> None:
        """Take in the ids (B, t) that are about to be read.

        Raises ValueError if there is no room for them, or for t > 1 unless the cache is empty.
        """
        t, longest = ids.shape[1], max(self.lengths)
        if longest + t > self.T or (t > 1 and longest):
            raise ValueError(
                f"expected one character more, and at most T = {self.T} in all; got {t} after "
                f"{longest}"
            )
        if self.ids.device.type == "cpu" and longest == min(self.lengths):  # no need for a mask
            self.places, self.mask = slice(longest, longest + t), None
            self.ids[:, self.places] = ids
        elif t > 1:
            self.places, self.mask = slice(0, t), None
            self.ids[:, :t] = ids
        else:  # shapes that never change, and nothing that the device must tell us
            self.places = self.ends.view(-1, 1, 1)
            self.ids.scatter_(1, self.ends[:, None], ids)
            self.mask = torch.arange(self.T, device=ids.device) <= self.places[..., None]

    def end(self, t: int) -> None:
        """They have been read."""
        self.lengths = [length + t for length in self.lengths]
        self.ends += t

    def before(self, distance: int) -> Tensor:
        """The ids (B, 1) so far before those being read; MASKED where the text begins later."""
        places = self.ends[:, None] - distance
        return self.ids.gather(1, places.clamp(min=0)).masked_fill(places < 0, MASKED)

    def set_lengths(self, lengths: list[int]) -> None:
        """Forget what comes after the first `lengths[b]` characters of text b."""
        self.lengths = lengths
        self.ends.copy_(torch.tensor(lengths))

    def tensors(self) -> list[Tensor]:
        """All it knows of each text, (B, ...)."""
        return [
            self.ends,
            self.ids,
            *(t for layer in self.layers for t in (layer.keys, layer.values)),
        ]

    def put(self, rows: list[int], other: "Cache") -> None:
        """Replace the texts in these rows by those of another cache."""
        index = torch.tensor(rows, device=self.ids.device)
        for row, length in zip(rows, other.lengths, strict=True):
            self.lengths[row] = length
        for mine, new in zip(self.tensors(), other.tensors(), strict=True):
            mine.index_copy_(0, index, new)

    def copy(self, row: int, rows: list[int]) -> None:
        """Replace the texts in these rows by that in one row."""
        for other in rows:
            self.lengths[other] = self.lengths[row]
        for tensor in self.tensors():
            tensor[rows] = tensor[row].clone()

    def keep(self, rows: list[int]) -> None:
        """Drop the texts in the other rows."""
        index = torch.tensor(rows, device=self.ids.device)
        self.lengths = [self.lengths[row] for row in rows]
        self.ends, self.ids = self.ends[index], self.ids[index]
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[index], layer.values[index]


class LayerCache:
    """The part of one layer: keys (B, H, T, hs) and values (B, H, T, vs)."""

    def __init__(self, cache: Cache, config: ModelConfig, B: int, device: torch.device) -> None:
        self.texts = cache
        self.keys, self.values = (
            torch.zeros(B, config.n_head, config.T, size, device=device)
            for size in (config.head_size, config.value_size)
        )

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put in those of the characters being read; return all so far (or T, to be masked)."""
        places = self.texts.places
        if isinstance(places, slice):
            self.keys[:, :, places], self.values[:, :, places] = keys, values
            return self.keys[:, :, : places.stop], self.values[:, :, : places.stop]
        index = places[..., None]  # (B, 1, 1, 1)
        self.keys.scatter_(2, index.expand_as(keys), keys)
        self.values.scatter_(2, index.expand_as(values), values)
        return self.keys, self.values
