"""One training step: draw a batch, forward, backward, clip, update."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.cuda_graph import EAGER_STEPS, StepGraph
from gpt.distributed import Ranks
from gpt.memory import explaining_lack_of_memory
from gpt.model.dropout import set_generator
from gpt.model.transformer import GPT
from gpt.runs.format import Tensors, TrainingState
from gpt.seeds import derive_seed
from gpt.text.batches import batch, token_dropout
from gpt.text.vocabulary import Ids
from gpt.training.backward import Backward
from gpt.training.compiled import compile_mode, compile_model
from gpt.training.data_parallel import data_parallel
from gpt.training.optimizer import make_optimizers
from gpt.training.schedule import Schedule
from gpt.training.workers import WorkerBackward

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
        self.parameters = [*model.parameters()]
        self.masks = torch.Generator(device) if config.model.dropout > 0 else None
        if self.masks is not None:
            set_generator(model, self.masks)
        # the threads of a CPU divide the windows of a batch
        kind = WorkerBackward if device.type == "cpu" else Backward
        self.backward = kind(config, model, device, ranks)
        self.scaler, self.precision = self.backward.scaler, self.backward.precision
        can_replay = (  # float16 waits for the device; the other cases were not tried
            device.type not in ("cpu", "mps")
            and ranks.size == 1
            and config.train.accumulation == 1
            and not self.backward.fused
            and self.precision != torch.float16
        )
        self.graph = StepGraph(self.update_weights, device, self.masks) if can_replay else None
        # how many first steps of each shape are slow; the last of them records the graph, if any
        self.warmup = EAGER_STEPS + 1 if self.graph else 1
        self.max_unread = 1 if device.type == "cpu" else MAX_UNREAD_STEPS
        self.optimizers = make_optimizers(model, config.train, self.precision)
        self.use_schedule(Schedule(config))
        compiled = compile_model(model, compile_mode(config.train.compile, device), self._rehearse)
        # set `wrapped` again: `_rehearse` may have set it to a model that failed to compile
        self.backward.wrapped = data_parallel(compiled, ranks, self._rehearse)

    def __call__(self, step: int, is_probe: bool = False) -> StepResult:
        """Draw the batch of `step`, counted from 0, and call `update_weights`.

        On CUDA, replay a graph of `update_weights`, if there is one. On an accelerator, the results
        may not be computed yet, except in float16 and on MPS.
        """
        # 1. draw the batch
        x, y, lr_factor = self.draw(step)
        if self.graph is not None:
            return self.graph(x, y, lr_factor, is_probe)
        return self.update_weights(x, y, lr_factor, is_probe)

    def update_weights(
        self, x: Tensor, y: Tensor, lr_factor: float | Tensor, is_probe: bool | Tensor
    ) -> StepResult:
        """Update the weights with inputs and targets (B, T), if loss and gradient are finite.

        Return the batch's mean loss before the update, and the gradient's norm before clipping. If
        `is_probe`, compute everything, but change neither weights nor `state_dict`. Raise
        TrainingError if memory runs out in the forward or the backward pass.
        """
        # 2. forward and backward, in backward.py or, on a CPU, workers.py: set `.grad`
        loss = self.set_gradients(x, y)
        if self.ranks.size > 1:
            torch.distributed.all_reduce(loss)  # the sum of the parts of all ranks
        self.scaler.unscale()  # for float16
        # 3. clip the gradient's norm to `train.grad_clip`, unless that is 0
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if max_norm := self.config.train.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, max_norm, norm)
        # 4. update the weights at `lr_factor` x the peak learning rates, unless loss or norm is NaN
        # or infinite
        skip = ~(loss.isfinite() & norm.isfinite()) | is_probe
        for optimizer in self.optimizers:
            optimizer.step(lr_factor, skip)
        self.scaler.adapt(is_probe=is_probe)  # for float16
        return loss, norm

    def draw(self, step: int) -> tuple[Tensor, Tensor, float]:
        """Draw this rank's inputs and targets (B, T) for `step`, and seed its dropout masks.

        Both tensors are on the CPU. They are contiguous and, for CUDA, in pinned memory, from which
        a copy to the device overlaps computations. With `model.character_dropout`, random input ids
        are replaced by `MASKED`, whose embedding is zero. The third result is the factor of
        the peak learning rates at `step`.
        """
        seed, rank = self.config.seed, self.ranks.rank
        if self.masks is not None:
            purpose = f"dropout of rank {rank}" if rank > 0 else "dropout"
            self.masks.manual_seed(derive_seed(seed, purpose, step))
        B, T = self.schedule.shape(step)
        x, y = batch(self.ids, B, T, seed=seed, step=step)
        if p := self.config.model.character_dropout:
            x = token_dropout(x, p, seed=seed, step=step)
        x, y = (ids[self.ranks.share(B)].contiguous() for ids in (x, y))
        if self.device.type == "cuda":
            x, y = x.pin_memory(), y.pin_memory()
        return x, y, self.schedule.lr(step) / self.config.train.learning_rate

    def set_gradients(self, x: Tensor, y: Tensor) -> Tensor:
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
            return self.backward(x, y)

    def probe(self, step: int) -> None:
        """Compute `step` without changing anything, to measure its time; do not wait for a GPU."""
        self(step, is_probe=True)

    def use_schedule(self, schedule: Schedule) -> None:
        """Use `schedule` from the next step on."""
        self.schedule = schedule

    @property
    def members(self) -> list["TrainStep"]:
        """A list of this TrainStep only. An EnsembleStep has one TrainStep for each member."""
        return [self]

    def read(self, results: list[StepResult]) -> list[list[list[float]]]:
        """Wait for `results`; return [losses, norms] of each, with one float for each member."""
        tensors = torch.stack([torch.stack(result) for result in results])  # (calls, 2[, K])
        numbers: list[list[list[float]]] = tensors.view(len(results), 2, -1).tolist()
        return numbers

    def _rehearse(self, wrapped: Any) -> None:
        """Use `wrapped` from now on; run it and its backward pass on a batch of each shape.

        This makes torch.compile compile for each shape, and DDP choose its order of additions.
        """
        self.backward.wrapped = wrapped
        for step in self.schedule.steps_of_each_shape():
            x, y, _ = self.draw(step)
            self.set_gradients(x, y)

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
