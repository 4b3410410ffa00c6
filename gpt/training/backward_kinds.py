"""The kinds of backward passes: on a CPU, as a CUDA graph, or on another device."""

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.cuda_graph import replayed
from gpt.distributed.ranks import Ranks
from gpt.model.transformer import GPT
from gpt.training.cpu_workers import WorkerBackward
from gpt.training.gradients import Backward, fuses_head
from gpt.training.loss_scaler import LossScaler


def make_backward(
    config: Config, model: GPT, device: torch.device, ranks: Ranks, scaler: LossScaler
) -> Backward:
    """Return the fastest Backward for `device`."""
    if device.type == "cpu":
        return WorkerBackward(config, model, device, ranks, scaler)
    can_record = (
        device.type != "mps"
        and ranks.size == config.train.accumulation == 1
        and not fuses_head(model.head.out_features, ranks)
        and not scaler.is_enabled
    )
    kind = RecordedBackward if can_record else Backward
    return kind(config, model, device, ranks, scaler)


class RecordedBackward(Backward):
    """Backward pass that is recorded as a CUDA graph, which starts all kernels at once.

    A batch of another shape replaces the graph. Accelerators without CUDA record nothing.
    """

    inputs: tuple[Tensor, ...] = ()  # the batch that `replay` reads

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        """Set each `.grad` for the batch `x`, `y`, (B, T); return the loss."""
        if not self.inputs or self.inputs[0].shape != x.shape:
            self.inputs = tuple(torch.empty_like(ids, device=self.device) for ids in (x, y))
            self.replay = replayed(self._compute_inputs, self.device, self.masks)
        for static, new in zip(self.inputs, (x, y), strict=True):
            static.copy_(self.pinned(new), non_blocking=True)
        loss, gradients = self.replay()
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        return loss

    def _compute_inputs(self) -> tuple[Tensor, list[Tensor | None]]:
        """Return the loss of the batch `inputs` and the gradient of each parameter."""
        self.model.zero_grad(set_to_none=True)
        loss = self.accumulate([(self.inputs[0], self.inputs[1])])
        return loss, [parameter.grad for parameter in self.parameters]
