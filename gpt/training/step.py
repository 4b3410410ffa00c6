"""One training step: draw a batch, forward, backward, clip, update."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.device import EAGER_STEPS, compile_mode, compile_model
from gpt.distributed import Ranks
from gpt.model.transformer import GPT
from gpt.runs.format import Tensors, TrainingState
from gpt.text.batches import batch, token_dropout
from gpt.text.vocabulary import Ids
from gpt.training.backward_kinds import RecordedUpdate, data_parallel, make_backward
from gpt.training.optimizer import make_optimizers
from gpt.training.schedule import Schedule

# Largest number of steps whose results are unread. Reading a result waits for its step to end.
MAX_UNREAD_STEPS = 10

StepResult = tuple[Tensor, Tensor]
"""The loss and the gradient norm of a step: () each, or (K,) for an ensemble of K members."""


class TrainStep:
    """Updates the weights of one model: each call trains on the batch of one step.

    The batch, its token dropout and the dropout masks depend only on the seed and the step. A step
    can be repeated exactly, because it uses nothing of earlier steps but the weights and
    `state_dict`.
    """

    def __init__(
        self,
        config: Config,
        model: GPT,  # on `device`
        device: torch.device,
        ranks: Ranks,  # each rank computes its share of the windows
        ids: Ids,  # the train split
    ) -> None:
        self.config, self.model, self.device, self.ranks = config, model, device, ranks
        self.ids = ids
        self.backward = make_backward(config, model, device, ranks)
        recorded = RecordedUpdate(self.update, device, self.backward.masks)
        self.recorded = recorded if self.backward.can_record else None
        # number of first steps of each shape that are slower; the last of them records a CUDA graph
        self.warmup = EAGER_STEPS + 1 if self.recorded else 1
        self.scaler, self.precision = self.backward.scaler, self.backward.precision
        self.max_unread = 1 if device.type == "cpu" else MAX_UNREAD_STEPS
        muon_dtype = self.precision if self.precision == torch.bfloat16 else torch.float32
        self.optimizers = make_optimizers(model, config.train, muon_dtype)
        self.use_schedule(Schedule(config))
        compiled = compile_model(model, compile_mode(config.train.compile, device), self._rehearse)
        # set `forward` again: `_rehearse` may have set it to a model that failed to compile
        self.backward.forward = data_parallel(compiled, ranks, self._rehearse)

    def __call__(self, step: int) -> StepResult:
        """Update the weights with the batch of `step`, if the loss and the gradient are finite.

        Return the batch's mean loss before the update, and the gradient's norm before clipping. On
        an accelerator, the call can return before both are computed, except in float16 and on MPS.
        Raise TrainingError if memory runs out.
        """
        # 1. draw the input ids and the target ids, (B, T) each, and seed the dropout masks
        x, y = self.draw_batch(step)
        # the learning rates of AdamW and Muon are `lr_factor` times their peaks
        lr_factor = self.schedule.lr(step) / self.config.train.learning_rate
        return (self.recorded or self.update)(x, y, lr_factor)

    def update(self, x: Tensor, y: Tensor, lr_factor: float | Tensor) -> StepResult:
        """Update the weights with one batch, unless `lr_factor` is 0; see `__call__`."""
        # 2. forward and backward: set `.grad` of each parameter
        loss = self.backward(x, y)
        if self.ranks.size > 1:
            torch.distributed.all_reduce(loss)
        # 3. clip the gradient's norm to `train.grad_clip`, unless that is 0
        self.scaler.unscale(self.optimizers)
        gradients = [p.grad for p in self.backward.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if max_norm := self.config.train.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(self.backward.parameters, max_norm, norm)
        # 4. update
        skip = ~(loss.isfinite() & norm.isfinite()) | (lr_factor == 0)
        self.scaler.update(self.optimizers, lr_factor, skip)
        return loss, norm

    def probe(self, step: int) -> None:
        """Start to compute `step` without changing weights; the caller measures the time."""
        x, y = self.draw_batch(step)
        if self.recorded:
            self.recorded(x, y, 0.0)
        else:
            self.backward(x, y)
            self.model.zero_grad(set_to_none=True)

    def use_schedule(self, schedule: Schedule) -> None:
        """Use `schedule` from the next step on."""
        self.schedule = schedule

    def draw_batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Draw this rank's inputs and targets (B, T) for `step`, and seed its dropout masks.

        Both tensors are on the CPU. They are contiguous and, for CUDA, in pinned memory, from which
        a copy to the device overlaps computations. With `model.character_dropout`, random input ids
        are replaced by `MASKED`, whose embedding is zero.
        """
        self.backward.seed_masks(step)
        B, T = self.schedule.shape(step)
        x, y = batch(self.ids, B, T, seed=self.config.seed, step=step)
        if p := self.config.model.character_dropout:
            x = token_dropout(x, p, seed=self.config.seed, step=step)
        x, y = (ids[self.ranks.share(B)].contiguous() for ids in (x, y))
        return (x.pin_memory(), y.pin_memory()) if self.device.type == "cuda" else (x, y)

    @property
    def members(self) -> list["TrainStep"]:
        """A list of this TrainStep only. An EnsembleStep has one TrainStep for each member."""
        return [self]

    def read(self, results: list[StepResult]) -> list[list[list[float]]]:
        """Wait for `results`; return each as [[loss], [norm]], with floats."""
        tensors = torch.stack([torch.stack(result) for result in results])  # (calls, 2[, K])
        numbers: list[list[list[float]]] = tensors.view(len(results), 2, -1).tolist()
        return numbers

    def _rehearse(self, forward: Any) -> None:
        """Use `forward` from now on; run it and its backward pass on a batch of each shape.

        This makes torch.compile compile for each shape, and DDP choose its order of additions.
        """
        self.backward.forward = forward
        for step in self.schedule.steps_of_each_shape():
            self.backward(*self.draw_batch(step))

    def state_dict(self) -> TrainingState:
        """Return the state of the optimizers and, in float16, of the LossScaler."""
        tensors = join_tensors([optimizer.state_dict() for optimizer in self.optimizers])
        return TrainingState(tensors, {"scaler": self.scaler.state_dict()})

    def load_state_dict(self, state: TrainingState) -> None:
        """Restore the optimizers and the LossScaler from `state`, a result of `state_dict`."""
        for i, tensors in enumerate(split_tensors(state.tensors, len(self.optimizers))):
            self.optimizers[i].load_state_dict(tensors)
        self.scaler.load_state_dict(state.numbers["scaler"])


def join_tensors(parts: Sequence[Tensors]) -> Tensors:
    """Return all tensors in one dict; `name` of `parts[i]` becomes `f"{i}.{name}"`."""
    return {f"{i}.{name}": array for i, part in enumerate(parts) for name, array in part.items()}


def split_tensors(tensors: Tensors, count: int) -> list[Tensors]:
    """Return `count` dicts: the inverse of `join_tensors`."""
    parts: list[Tensors] = [{} for _ in range(count)]
    for name, array in tensors.items():
        i, _, name_in_part = name.partition(".")
        parts[int(i)][name_in_part] = array
    return parts
