"""The engine for torch's devices: a GPU, which numpy cannot use."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt.model.ensemble import LanguageModel
from gpt.model.kv_cache import Cache

EAGER_STEPS = 3  # calls that CUDA needs to warm up before it may capture one


class TorchEngine:
    """B texts; each character costs one synchronisation: the logits are copied to the CPU."""

    def __init__(self, model: LanguageModel, B: int) -> None:
        self.model, self.T = model.eval(), model.config.T
        self.device = next(model.parameters()).device
        self.cache = Cache(model.config, B, self.device)
        self.ids = torch.zeros(B, 1, dtype=torch.long, device=self.device)
        self._logits = replayed(self._forward, self.device)

    @torch.inference_mode()
    def prefill(self, rows: list[int], texts: list[list[int]]) -> None:
        """See `Engine.prefill`."""
        lengths = [len(text) for text in texts]
        fresh = Cache(self.model.config, len(rows), self.device)
        if longest := max(lengths):  # pad shorter texts; `set_lengths` discards the padding
            padded = [text + [0] * (longest - len(text)) for text in texts]
            self.model(torch.tensor(padded, device=self.device), fresh)
            fresh.set_lengths(lengths)
        self.cache.replace(rows, fresh, range(len(rows)))

    @torch.inference_mode()
    def decode(self, ids: list[int]) -> NDArray[np.float32]:
        """See `Engine.decode`."""
        lengths = [length + 1 for length in self.cache.lengths]
        self.ids.copy_(torch.tensor(ids)[:, None])
        logits: NDArray[np.float32] = self._logits().cpu().numpy()
        self.cache.lengths = lengths  # replaying a CUDA graph runs no Python, which would set them
        return logits

    @torch.inference_mode()
    def select(self, rows: list[int]) -> None:
        """See `Engine.select`."""
        selected = Cache(self.model.config, len(rows), self.device)
        selected.replace(range(len(rows)), self.cache, rows)
        self.cache, self.ids = selected, self.ids[: len(rows)]
        self._logits = replayed(self._forward, self.device)

    def _forward(self) -> Tensor:
        logits: Tensor = self.model(self.ids, self.cache)
        return logits[:, -1].float()


def replayed(step: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Return `step`; on CUDA, capture its fourth call as a graph and replay that from then on.

    A replay starts the many small kernels of one character by a single call. `step` takes no
    arguments, and reads and writes the same tensors at each call.
    """
    if device.type != "cuda":
        return step
    graph, output, calls = torch.cuda.CUDAGraph(), torch.empty(0), 0

    def run() -> Tensor:
        nonlocal output, calls
        calls += 1
        if calls <= EAGER_STEPS:
            return step()
        if calls == EAGER_STEPS + 1:
            with torch.cuda.graph(graph):  # records the kernels without running them
                output = step()
        graph.replay()
        return output

    return run
