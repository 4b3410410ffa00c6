"""A torch model that reads texts as they grow; on a GPU, where numpy cannot follow."""

import numpy as np
import torch
from numpy.typing import NDArray

from gpt.model.cache import Cache
from gpt.model.transformer import GPT

EAGER_STEPS = 3  # before CUDA may record one


class TorchReader:
    """Reads B texts, each at its own place, and keeps the keys and values of all.

    On CUDA one step is recorded and played back (a CUDA graph): the many small kernels of one
    character are started by a single call.
    """

    def __init__(self, model: GPT, B: int) -> None:
        self.model, self.T = model.eval(), model.config.T
        self.device = next(model.parameters()).device
        self.cache = Cache(model.config, B, self.device)
        self.ids = torch.zeros(B, 1, dtype=torch.long, device=self.device)
        self.logits = torch.empty(0)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager_steps = 0

    @torch.inference_mode()
    def read(self, rows: list[int], texts: list[list[int]]) -> None:
        """Put these texts, of any lengths up to T, in place of those in these rows."""
        lengths = [len(text) for text in texts]
        fresh = Cache(self.model.config, len(rows), self.device)
        if longest := max(lengths):  # the shorter ones are filled up, and that is forgotten
            filled = [text + [0] * (longest - len(text)) for text in texts]
            self.model(torch.tensor(filled, device=self.device), fresh)
            fresh.set_lengths(lengths)
        self.cache.put(rows, fresh)

    @torch.inference_mode()
    def next(self, ids: list[int]) -> NDArray[np.float32]:
        """Read one character more of each text: the logits (B, V) of those that follow."""
        self.ids.copy_(torch.tensor(ids)[:, None])
        if self.graph is not None:
            self.graph.replay()
            self.cache.lengths = [length + 1 for length in self.cache.lengths]
        elif self.device.type == "cuda" and self.eager_steps == EAGER_STEPS:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # records, and computes nothing yet
                self._step()
            self.graph = graph
            self.graph.replay()
        else:
            self._step()
            self.eager_steps += 1
        logits: NDArray[np.float32] = self.logits.cpu().numpy()
        return logits

    @torch.inference_mode()
    def copy(self, row: int, rows: list[int]) -> None:
        """Put the text in one row in place of those in others."""
        self.cache.copy(row, rows)

    def keep(self, rows: list[int]) -> None:
        """Go on with these texts only."""
        self.cache.keep(rows)
        self.ids, self.graph, self.eager_steps = self.ids[rows], None, 0

    def _step(self) -> None:
        self.logits = self.model(self.ids, self.cache)[:, -1].float()
