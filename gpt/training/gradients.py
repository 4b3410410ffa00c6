"""The backward pass: compute the loss of a batch, and the gradient of each parameter."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gpt.config.schema import Config
from gpt.device import autocast, select_precision
from gpt.distributed import SINGLE, Ranks
from gpt.memory import explaining_lack_of_memory
from gpt.model.dropout import set_generator
from gpt.model.transformer import GPT, LARGE_VOCABULARY, cross_entropy
from gpt.seeds import derive_seed
from gpt.training.linear_cross_entropy import linear_cross_entropy
from gpt.training.optimizer import LossScaler

Parts = Sequence[tuple[Tensor, Tensor]]
"""Inputs and targets of each part of a batch, (windows, T) each."""


class Backward:
    """Sets `.grad` of each parameter to the gradient of a batch's mean loss.

    The batch is divided into `train.accumulation` parts, which are computed one after another.
    WorkerBackward overrides `parts` and `accumulate`.
    """

    def __init__(self, config: Config, model: GPT, device: torch.device, ranks: Ranks) -> None:
        self.forward: Any = model  # possibly compiled or wrapped by DDP; returns the logits
        self.config, self.model, self.device, self.ranks = config, model, device, ranks
        self.parameters = [*model.parameters()]
        self.fused = fuses_head(model.head.out_features, ranks)
        self.precision = select_precision(config.train.precision, device)
        self.scaler = LossScaler(device, self.precision)
        self.characters = config.train.batch_size * config.model.T  # ids in the batch of all ranks
        self.can_record = (  # whether a step can be replayed as a CUDA graph
            device.type not in ("cpu", "mps")
            and ranks.size == config.train.accumulation == 1
            and not self.fused
            and self.precision != torch.float16
        )
        self.masks = torch.Generator(device) if config.model.dropout > 0 else None
        if self.masks is not None:
            set_generator(model, self.masks)

    def seed_masks(self, step: int) -> None:
        """Draw the dropout masks of the next backward pass from a seed that depends on `step`."""
        if self.masks is not None:
            rank = self.ranks.rank
            purpose = f"dropout of rank {rank}" if rank > 0 else "dropout"
            self.masks.manual_seed(derive_seed(self.config.seed, purpose, step))

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Set each parameter's `.grad` for the inputs `x` and the targets `y`, (B, T) each.

        Return this rank's part of the mean loss. Raise TrainingError if memory runs out.
        """
        self.model.train()  # an evaluated or loaded model is in evaluation mode
        self.model.zero_grad(set_to_none=True)
        windows = math.ceil(len(x) / self.config.train.accumulation)
        with explaining_lack_of_memory(
            f"not enough memory on {self.device} for {windows} windows of {x.shape[1]} characters",
            "use a larger train.accumulation, which changes results only by rounding, or a smaller "
            "model.T, model.C or model.n_layer",
        ):
            x, y = (ids.to(self.device, non_blocking=True) for ids in (x, y))
            return self.accumulate(self.parts(x, y))

    def accumulate(self, parts: Parts) -> Tensor:
        """Add the gradients of each part to `.grad`; return the sum of the parts' losses."""
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        is_ddp = isinstance(self.forward, DistributedDataParallel)
        for i, (x, y) in enumerate(parts, start=1):
            # let DDP average the gradients of the ranks only once, with the last part
            with self.forward.no_sync() if is_ddp and i < len(parts) else nullcontext():
                loss = self.loss(x, y)
                self.scale_for_backward(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the summed loss on `x`, `y`, divided by the number of ids in all ranks' batch."""
        if self.fused:
            with autocast(self.device, self.precision):
                hidden = self.forward.hidden(x).flatten(0, 1)  # (B T, C)
            weight = self.model.head.weight  # (V, C)
            loss = linear_cross_entropy(hidden, weight, y.flatten(), self.precision)
        else:
            with autocast(self.device, self.precision):
                logits = self.forward(x)  # (B, T, V)
            loss = cross_entropy(logits, y, reduction="sum")
        return loss / self.characters

    def scale_for_backward(self, loss: Tensor) -> Tensor:
        """Multiply `loss` by the LossScaler's factor, and by the number of ranks.

        The number of ranks turns DDP's mean of the ranks' gradients into their sum.
        """
        return self.scaler.scale(loss) * self.ranks.size

    def parts(self, x: Tensor, y: Tensor) -> Parts:
        """Divide `x` and `y`, (B, T) each, into parts that are computed one after another."""
        count = self.config.train.accumulation
        return [*zip(x.chunk(count), y.chunk(count), strict=True)]


def fuses_head(V: int, ranks: Ranks = SINGLE) -> bool:
    """Return whether `linear_cross_entropy` computes head and loss, for a vocabulary of `V` ids.

    This is impossible with DDP, which wraps the whole forward pass.
    """
    return V >= LARGE_VOCABULARY and ranks.size == 1
