"""Engine for GPUs and other devices that numpy cannot use: the model in torch."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt.cuda_graph import replayed
from gpt.device import deterministic_kernels
from gpt.model.ensemble import LanguageModel
from gpt.model.keys_and_values import Cache


class TorchEngine:
    """`Engine` in torch. Each step waits for the device once, to copy the logits to the CPU."""

    def __init__(self, model: LanguageModel, B: int) -> None:
        self.model, self.T = model.eval(), model.config.T
        self.device = next(model.parameters()).device
        self.cache = Cache(model.config, B, self.device)
        self.ids = torch.zeros(B, 1, dtype=torch.long, device=self.device)
        self._logits = replayed(self._forward, self.device)

    @torch.inference_mode()
    def prefill(self, rows: list[int], texts: list[list[int]]) -> None:
        """Replace the texts in `rows` by `texts`, which are lists of at most T ids."""
        lengths = [len(text) for text in texts]
        fresh = Cache(self.model.config, len(rows), self.device)
        if longest := max(lengths):  # pad shorter texts; `set_lengths` discards the padding
            padded = [text + [0] * (longest - len(text)) for text in texts]
            self.model(torch.tensor(padded, device=self.device), fresh)
            fresh.set_lengths(lengths)
        self.cache.replace(rows, fresh, range(len(rows)))

    @torch.inference_mode()
    def decode(self, ids: list[int]) -> NDArray[np.float32]:
        """Append one id to each text; return the logits (B, V) of the next ids."""
        lengths = [length + 1 for length in self.cache.lengths]
        self.ids.copy_(torch.tensor(ids)[:, None])
        # in older torch, a CUDA graph cannot record the deterministic scatter into the cache; the
        # plain scatter is deterministic, too, because it writes each position once
        with deterministic_kernels(required=False):
            logits: NDArray[np.float32] = self._logits().cpu().numpy()
        self.cache.lengths = lengths  # a replayed CUDA graph does not run `Cache.end`
        return logits

    @torch.inference_mode()
    def select(self, rows: list[int]) -> None:
        """Keep only the texts with the indices `rows`, in this order; a row may be repeated."""
        selected = Cache(self.model.config, len(rows), self.device)
        selected.replace(range(len(rows)), self.cache, rows)
        self.cache, self.ids = selected, self.ids[rows]
        self._logits = replayed(self._forward, self.device)

    def _forward(self) -> Tensor:
        return self.model(self.ids, self.cache)[:, -1].float()
