"""One update of the weights: forward, backward, clip, update."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.cuda_graph import replayed
from gpt.device import compile_model
from gpt.distributed.ddp import data_parallel
from gpt.distributed.ranks import Ranks
from gpt.errors import TrainingError
from gpt.model.dropout import set_generator
from gpt.model.transformer import GPT
from gpt.runs.format import Tensors, TrainingState
from gpt.seeds import derive_seed
from gpt.text.batches import batch, token_dropout
from gpt.text.prefetch import Prefetch
from gpt.text.vocabulary import Ids
from gpt.training.gradients import Backward
from gpt.training.optimizer import make_optimizers
from gpt.training.schedule import Schedule

Result = tuple[Tensor, Tensor]
"""The loss and the gradient norm of a step: () each, or (K,) for an ensemble of K members."""


class TrainStep:
    """Updates the weights of one model: each call trains on the batch of one step.

    The batch, its token dropout and the dropout masks depend only on the seed and the step. A step
    can be repeated exactly, because it uses nothing of earlier steps but the weights and
    `state_dict`. The next batch is drawn while the current one is computed.
    """

    def __init__(
        self,
        config: Config,
        model: GPT,  # on `device`
        device: torch.device,
        ranks: Ranks,  # each computes its share of the windows
        ids: Ids,  # the train split
    ) -> None:
        self.config, self.model, self.device, self.ranks = config, model, device, ranks
        self.ids = ids
        self.backward = Backward(config, model, device, ranks)
        self.precision = self.backward.precision
        self.is_asynchronous = device.type != "cpu"  # whether a call can return early
        self.masks = torch.Generator(device) if config.model.dropout > 0 else None
        if self.masks is not None:
            set_generator(model, self.masks)
        products = self.precision if self.precision == torch.bfloat16 else torch.float32
        self.optimizers = make_optimizers(model, config.train, products)
        # gradients are scaled up, as float16 rounds small numbers to 0 (arXiv:1710.03740)
        is_half = self.precision == torch.float16
        self.scaler: Any = torch.amp.GradScaler(device.type, enabled=is_half)
        self.inputs: list[Tensor] = []  # the batch that `replay` reads
        self.is_recorded = (  # whether a step is one CUDA graph
            device.type not in ("cpu", "mps")
            and ranks.size == config.train.accumulation == 1
            and not self.backward.fused
            and not self.scaler.is_enabled()
        )
        self.follow(Schedule(config))
        compiled = compile_model(model, config.train.compile, device, self._rehearse)
        self.backward.forward = data_parallel(compiled, ranks, self._rehearse)

    def __call__(self, step: int) -> Result:
        """Update the weights with the batch of `step`, if the loss and the gradient are finite.

        Return the batch's mean loss before the update, and the gradient's norm before clipping. On
        an accelerator, the call can return before they are computed, except in float16 and on MPS.
        (On MPS, torch's AdamW cannot skip an update.) Raise TrainingError if memory runs out.
        """
        # 1. forward and backward
        loss = self.forward_and_backward(step)
        if self.ranks.size > 1:
            torch.distributed.all_reduce(loss)
        # 2. clip
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        train = self.config.train
        gradients = [p.grad for p in self.backward.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if train.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(self.backward.parameters, train.grad_clip, norm)
        # 3. update; Muon's learning rate is proportional to AdamW's
        lr_factor = self.schedule.lr(step) / train.learning_rate
        skip = ~(loss.isfinite() & norm.isfinite())
        must_wait = self.device.type in ("cpu", "mps") or self.scaler.is_enabled()
        for optimizer in self.optimizers:
            if not must_wait:
                optimizer.step(lr_factor, skip)
            elif not skip:
                self.scaler.step(optimizer, lr_factor)
        self.scaler.update()
        return loss, norm

    def forward_and_backward(self, step: int) -> Tensor:
        """Set each `.grad` for the batch of `step`; return this rank's part of the mean loss."""
        x, y = self.batches(step)
        self.model.train()  # an evaluated or loaded model is in evaluation mode
        self.model.zero_grad(set_to_none=True)
        loss = torch.zeros((), dtype=torch.float32, device=self.device)
        # DDP averages the ranks' gradients, but they must be added: multiply by the number of ranks
        ranks = torch.full((), self.ranks.size, dtype=torch.float32, device=self.device)
        scale = self.scaler.scale(ranks)
        if self.masks is not None:
            purpose = f"dropout of rank {rank}" if (rank := self.ranks.rank) else "dropout"
            self.masks.manual_seed(derive_seed(self.config.seed, purpose, step))
        xs, ys = (t.chunk(self.config.train.accumulation) for t in (x, y))
        try:
            if self.is_recorded:
                loss += self._replay(x, y)
            else:
                for i, micro_batch in enumerate(zip(xs, ys, strict=True), start=1):
                    pinned = map(self._pinned, micro_batch)
                    x_micro, y_micro = (t.to(self.device, non_blocking=True) for t in pinned)
                    loss += self.backward(x_micro, y_micro, scale, last=i == len(xs))
        except RuntimeError as error:  # on a GPU, its subclass torch.OutOfMemoryError
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise TrainingError(
                    f"not enough memory on {self.device} for {len(xs[0])} windows of {x.shape[1]} "
                    f"characters ({str(error).splitlines()[0]:.150}); use a larger "
                    f"train.accumulation, which changes results only by rounding, or a smaller "
                    f"model.T, model.C or model.n_layer"
                ) from error
            raise
        return loss

    def _replay(self, x: Tensor, y: Tensor) -> Tensor:
        """Set `.grad` for the batch `x`, `y`, (B, T); return the loss. On CUDA, use a CUDA graph.

        The graph is replaced if the shape of the batch changes.
        """
        if not self.inputs or self.inputs[0].shape != x.shape:
            self.inputs = [torch.empty_like(t, device=self.device) for t in (x, y)]
            self.replay = replayed(self._compute, self.device, self.masks)
        for static, new in zip(self.inputs, (x, y), strict=True):
            static.copy_(self._pinned(new), non_blocking=True)
        loss, gradients = self.replay()
        for parameter, gradient in zip(self.backward.parameters, gradients, strict=True):
            parameter.grad = gradient
        return loss

    def _compute(self) -> tuple[Tensor, list[Tensor | None]]:
        """Return the loss of the batch `self.inputs` and the gradient of each parameter."""
        self.model.zero_grad(set_to_none=True)
        x, y = self.inputs
        loss = self.backward(x, y, torch.ones((), dtype=torch.float32, device=self.device))
        return loss, [parameter.grad for parameter in self.backward.parameters]

    def _pinned(self, batch: Tensor) -> Tensor:
        """Return `batch`, pinned for CUDA, so that its copy to the GPU overlaps computations."""
        return batch.pin_memory() if self.device.type == "cuda" else batch

    def follow(self, schedule: Schedule) -> None:
        """Use `schedule` from the next step on. Call again if its number of steps changes."""
        self.schedule = schedule
        draw = partial(draw_batch, self.config, self.ids, self.ranks, schedule)
        self.batches = Prefetch(draw, schedule.steps)  # the next batch may have another shape

    @property
    def members(self) -> list["TrainStep"]:
        """A list of this TrainStep only. An EnsembleStep has one TrainStep for each member."""
        return [self]

    def read(self, results: list[Result]) -> list[list[list[float]]]:
        """Wait for `results`; return each as [[loss], [norm]], as floats."""
        tensors = torch.stack([torch.stack(result) for result in results])  # (calls, 2[, K])
        numbers: list[list[list[float]]] = tensors.view(len(results), 2, -1).tolist()
        return numbers

    def is_failure(self, loss: float, norm: float) -> bool:
        """Return whether the `loss` or the gradient's `norm` of a step is NaN or infinite.

        In float16, gradients overflow until GradScaler has lowered its factor far enough. Until
        then, ignore `norm`.
        """
        may_overflow = self.scaler.is_enabled() and self.scaler.get_scale() >= 1
        return not (math.isfinite(loss) and (may_overflow or math.isfinite(norm)))

    def probe(self, step: int) -> None:
        """Compute the gradients of `step` and discard them; the caller measures the time."""
        self.forward_and_backward(step)
        self.model.zero_grad(set_to_none=True)
        if self.is_asynchronous:
            torch.accelerator.synchronize(self.device)

    def _rehearse(self, forward: Any) -> None:
        """Run `forward` and its backward pass on one batch of each shape in the schedule.

        This makes torch.compile compile for each shape, and DDP choose its order of additions.
        """
        self.backward.forward = forward
        first_of = {self.schedule.shape(step): step for step in (self.schedule.steps, 0)}
        for step in first_of.values():
            self.forward_and_backward(step)

    def state_dict(self) -> TrainingState:
        """Return the state of the optimizers and, in float16, of GradScaler."""
        tensors = join_tensors([optimizer.state_dict() for optimizer in self.optimizers])
        return TrainingState(tensors, {"scaler": self.scaler.state_dict()})

    def load_state_dict(self, state: TrainingState) -> None:
        """Restore the optimizers and GradScaler from `state`, a result of `state_dict`."""
        for i, tensors in enumerate(split_tensors(state.tensors, len(self.optimizers))):
            self.optimizers[i].load_state_dict(tensors)
        scaler = state.numbers["scaler"]
        if not all(isinstance(number, int | float) for number in scaler.values()):
            raise TypeError("expected numbers as scaler")
        if scaler:  # empty if the checkpoint was not trained in float16
            self.scaler.load_state_dict(scaler)


def join_tensors(parts: Sequence[Tensors]) -> Tensors:
    """Return all tensors in one dict; `name` of `parts[i]` becomes `f"{i}.{name}"`."""
    return {f"{i}.{name}": array for i, part in enumerate(parts) for name, array in part.items()}


def split_tensors(tensors: Tensors, count: int) -> list[Tensors]:
    """Return `count` dicts: the inverse of `join_tensors`."""
    parts: list[Tensors] = [{} for _ in range(count)]
    for name, array in tensors.items():
        i, _, rest = name.partition(".")
        parts[int(i)][rest] = array
    return parts


def draw_batch(
    config: Config, ids: Ids, ranks: Ranks, schedule: Schedule, step: int
) -> tuple[Tensor, Tensor]:
    """Return this rank's inputs and targets (B, T) for `step`, on the CPU.

    With `model.character_dropout`, random input ids are replaced by `MASKED`, whose embedding is
    zero. Both tensors are contiguous, because CUDA copies others through slower, pageable memory.
    """
    B, T = schedule.shape(step)
    x, y = batch(ids, B, T, seed=config.seed, step=step)
    if config.model.character_dropout:
        x = token_dropout(x, config.model.character_dropout, seed=config.seed, step=step)
    share = ranks.share(B)
    return x[share].contiguous(), y[share].contiguous()
