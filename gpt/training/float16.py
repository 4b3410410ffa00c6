"""float16: a loss multiplied by a large factor, so that small gradients are not rounded to 0."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class LossScaler(torch.amp.GradScaler):
    """Scales the loss of each step, and its gradients back (arXiv:1710.03740).

    The factor falls when gradients overflow, and rises slowly otherwise. In other precisions than
    float16, the methods do nothing.
    """

    def __init__(
        self, parameters: Sequence[Tensor], device: torch.device, precision: torch.dtype
    ) -> None:
        super().__init__(device.type, enabled=precision == torch.float16)
        self.param_groups = [{"params": parameters}]  # GradScaler takes `self` for an optimizer

    def unscale(self) -> None:
        """Divide the gradient of each parameter by the factor that `scale` applied."""
        self.unscale_(self)  # type: ignore[arg-type]

    def adapt(self, *, is_probe: bool | Tensor) -> None:
        """Adapt the factor to the gradients of this step, unless it is a probe."""
        if self.is_enabled():
            self.update(self.get_scale() if is_probe else None)

    @property
    def may_overflow(self) -> bool:
        """Whether gradients may overflow: GradScaler can still lower its factor, which is >= 1."""
        return self.is_enabled() and self.get_scale() >= 1

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state`, unless it is empty; raise TypeError if a value is not a number."""
        if not all(isinstance(number, int | float) for number in state.values()):
            raise TypeError("expected numbers as the state of GradScaler")
        if state:
            super().load_state_dict(state)
