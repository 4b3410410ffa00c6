"""The backward pass: compute the loss of a batch, and the gradient of each parameter."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gpt.config.schema import Config
from gpt.device import autocast, select_precision
from gpt.distributed import Ranks
from gpt.model.transformer import GPT, cross_entropy
from gpt.training.float16 import LossScaler
from gpt.training.linear_cross_entropy import fuses_head, linear_cross_entropy


class Backward:
    """Adds the gradient of a batch's mean loss to `.grad` of each parameter.

    The batch is divided into `train.accumulation` parts, which are computed one after another.
    """

    def __init__(self, config: Config, model: GPT, device: torch.device, ranks: Ranks) -> None:
        self.wrapped: Any = model  # possibly compiled or wrapped by DDP
        self.config, self.model, self.device, self.ranks = config, model, device, ranks
        self.parameters = [*model.parameters()]
        self.fused = fuses_head(model.head.out_features, ranks)
        self.precision = select_precision(config.train.precision, device)
        self.scaler = LossScaler(self.parameters, device, self.precision)
        self.characters = config.train.batch_size * config.model.T  # ids in the batch of all ranks

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradients for the inputs `x` and the targets `y`, (B, T) each, to `.grad`.

        Return this rank's part of the mean loss.
        """
        return self.accumulate(divide(x, y, self.config.train.accumulation))

    def accumulate(self, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Add the gradients of each part to `.grad`; return the sum of the parts' losses."""
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        is_ddp = isinstance(self.wrapped, DistributedDataParallel)
        for i, (x, y) in enumerate(parts, start=1):
            # let DDP average the gradients of the ranks only once, with the last part
            with self.wrapped.no_sync() if is_ddp and i < len(parts) else nullcontext():
                loss = self.loss(x, y)
                self.scaled(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the summed loss on `x`, `y`, divided by the number of ids in all ranks' batch."""
        if self.fused:
            with autocast(self.device, self.precision):
                hidden = self.wrapped.hidden(x).flatten(0, 1)  # (B T, C)
            weight = self.model.head.weight  # (V, C)
            loss = linear_cross_entropy(hidden, weight, y.flatten(), self.precision)
        else:
            with autocast(self.device, self.precision):
                logits = self.wrapped(x)  # (B, T, V)
            loss = cross_entropy(logits, y, reduction="sum")
        return loss / self.characters

    def scaled(self, loss: Tensor) -> Tensor:
        """Multiply `loss` by the LossScaler's factor, and by the number of ranks.

        The number of ranks turns DDP's mean of the ranks' gradients into their sum.
        """
        return self.scaler.scale(loss) * self.ranks.size


def divide(x: Tensor, y: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """Divide `x` and `y`, (B, T) each, into at most `count` parts, (windows, T) each.

    There can be fewer parts than `count`: if it is 3, 4 windows become two parts of 2.
    """
    return [*zip(x.chunk(count), y.chunk(count), strict=True)]
