"""Scale losses for float16, and apply or skip the update of a step."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpt.training.optimizer import Optimizer


class LossScaler:
    """Scales losses, so that small gradients are not rounded to 0 in float16 (arXiv:1710.03740).

    With another `precision`, losses and gradients stay as they are.
    """

    def __init__(self, device: torch.device, precision: torch.dtype) -> None:
        self.is_enabled = precision == torch.float16
        self.scaler: Any = torch.amp.GradScaler(device.type, enabled=self.is_enabled)
        # on CUDA, the optimizers apply `skip` without waiting; torch's AdamW for MPS cannot
        self.must_wait = device.type in ("cpu", "mps") or self.is_enabled

    def scale(self, loss: Tensor) -> Tensor:
        """Return `loss`, (), times the current factor."""
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self, optimizers: Sequence[Optimizer]) -> None:
        """Divide all gradients by the factor."""
        for optimizer in optimizers:
            self.scaler.unscale_(optimizer)

    def update(self, optimizers: Sequence[Optimizer], lr_factor: float, skip: Tensor) -> None:
        """Update the weights by all `optimizers`, unless `skip`, a bool tensor (), is true."""
        for optimizer in optimizers:
            if not self.must_wait:
                optimizer.step(lr_factor, skip)
            elif not skip:
                self.scaler.step(optimizer, lr_factor)
        self.scaler.update()

    def is_failure(self, loss: float, norm: float) -> bool:
        """Return whether the `loss` or the gradient's `norm` of a step is NaN or infinite.

        In float16, gradients overflow until GradScaler has lowered its factor far enough. Until
        then, ignore `norm`.
        """
        may_overflow = self.is_enabled and self.scaler.get_scale() >= 1
        return not (math.isfinite(loss) and (may_overflow or math.isfinite(norm)))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of GradScaler; empty unless the precision is float16."""
        state: dict[str, Any] = self.scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state`, unless it is empty; raise TypeError if a value is not a number."""
        if not all(isinstance(number, int | float) for number in state.values()):
            raise TypeError("expected numbers as the state of GradScaler")
        if state:
            self.scaler.load_state_dict(state)
