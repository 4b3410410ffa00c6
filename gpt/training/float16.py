"""float16: a loss multiplied by a large factor, so that small gradients are not rounded to 0."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class LossScaler:
    """Scales the loss of each step, and its gradients back (arXiv:1710.03740).

    The factor falls when gradients overflow, and rises slowly otherwise. In other precisions than
    float16, the methods do nothing.
    """

    def __init__(
        self, parameters: Sequence[Tensor], device: torch.device, precision: torch.dtype
    ) -> None:
        self.is_enabled = precision == torch.float16
        self.scaler: Any = torch.amp.GradScaler(device.type, enabled=self.is_enabled)
        self.param_groups = [{"params": parameters}]  # GradScaler takes `self` for an optimizer

    def scale(self, loss: Tensor) -> Tensor:
        """Return `loss`, a scalar, times the current factor."""
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self) -> None:
        """Divide the gradient of each parameter by the factor that `scale` applied."""
        self.scaler.unscale_(self)

    def update(self, *, is_probe: bool | Tensor) -> None:
        """Adapt the factor to the gradients of this step, unless it is a probe."""
        if self.is_enabled:
            self.scaler.update(self.scaler.get_scale() if is_probe else None)

    @property
    def may_overflow(self) -> bool:
        """Whether gradients may overflow, until GradScaler has lowered its factor far enough."""
        return self.is_enabled and bool(self.scaler.get_scale() >= 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of GradScaler: an empty dict unless the precision is float16."""
        state: dict[str, Any] = self.scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state`, unless it is empty; raise TypeError if a value is not a number."""
        if not all(isinstance(number, int | float) for number in state.values()):
            raise TypeError("expected numbers as the state of GradScaler")
        if state:
            self.scaler.load_state_dict(state)
