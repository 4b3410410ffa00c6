"""One update of the weights: forward, backward, clip, update."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.device import move
from gpt.distributed.ddp import all_reduce
from gpt.distributed.ranks import Ranks
from gpt.errors import TrainingError, counted
from gpt.evaluation.loss import unknown_cost
from gpt.model.dropout import set_generator
from gpt.runs.format import Tensors, TrainingState
from gpt.seeds import derive_seed
from gpt.text.batches import batch, token_dropout
from gpt.text.prefetch import Prefetch
from gpt.text.vocabulary import Ids, Vocabulary
from gpt.training.gradients import PlainBackward, ThreadedBackward
from gpt.training.optimizer import make_optimizers
from gpt.training.schedule import Schedule

Result = tuple[Tensor, Tensor]
"""A loss and the norm of its gradient, () each; or (K,), of K members."""


class TrainStep:
    """Updates of one model, each from the batch of its step.

    The batch, its token dropout and the dropout masks are pure functions of (seed, step), so a step
    can be repeated exactly. `state_dict` contains all that one step leaves to the next. The next
    batch is drawn while the current one is computed. Each rank computes its share of the windows.

    `build_step` selects the arguments.
    """

    def __init__(
        self,
        config: Config,
        ranks: Ranks,
        ids: Ids,
        vocabulary: Vocabulary | None,
        backward: PlainBackward | ThreadedBackward,
    ) -> None:
        self.config, self.ranks, self.ids, self.vocabulary = config, ranks, ids, vocabulary
        self.backward, loss = backward, backward.loss
        self.model, self.device, self.precision = loss.model, loss.device, loss.precision
        self.teacher = loss.teacher
        self.masks = torch.Generator(self.device) if config.model.dropout > 0 else None
        if self.masks is not None:
            set_generator(self.model, self.masks)
        products = self.precision if self.precision == torch.bfloat16 else torch.float32
        self.optimizers = make_optimizers(self.model, config.train, products, ranks)
        # float16 has few exponents: gradients are scaled up so that none is lost (arXiv:1710.03740)
        self.scaler: Any = torch.amp.GradScaler(
            self.device.type, enabled=self.precision == torch.float16
        )
        self.follow(Schedule(config))

    def __call__(self, step: int) -> Result:
        """Update the weights once, after `step` earlier steps.

        If the loss or the norm is NaN or infinite, no parameter is updated. An accelerator decides
        this by itself, and the CPU waits for it only in float16.

        Returns:
            The batch's mean loss before the update, in which unknown ids count as in an evaluation,
            and the norm of its gradient before clipping.

        Raises:
            TrainingError: memory runs out.
        """
        self.model.train()
        loss = all_reduce(self.forward_and_backward(step), self.ranks)
        norm = self.clip()
        self.update(self.schedule.lr(step), skip=~(loss.isfinite() & norm.isfinite()))
        return loss, norm

    def forward_and_backward(self, step: int, *, synchronise: bool = True) -> Tensor:
        """Leave the gradients of a step's batch in the model; return this rank's part of the loss.

        The gradients are those of all ranks together, unless `synchronise` is false.
        """
        x, y = self.batches(step)
        self.model.zero_grad(set_to_none=True)
        loss = torch.zeros((), dtype=torch.float32, device=self.device)
        # times the number of ranks, because DDP averages what should be added
        ranks = torch.full((), self.ranks.size, dtype=torch.float32, device=self.device)
        scale = self.scaler.scale(ranks)
        if self.masks is not None:
            purpose = f"dropout of rank {rank}" if (rank := self.ranks.rank) else "dropout"
            self.masks.manual_seed(derive_seed(self.config.seed, purpose, step))
        xs, ys = (t.chunk(self.config.train.accumulation) for t in (x, y))
        try:
            for i, micro_batch in enumerate(zip(xs, ys, strict=True), start=1):
                x_micro, y_micro = (move(t, self.device) for t in micro_batch)
                last = synchronise and i == len(xs)
                loss += self.backward(x_micro, y_micro, scale, last=last)
        except RuntimeError as error:  # torch.OutOfMemoryError on a GPU, nameless on a CPU
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise self._out_of_memory(x, str(error).splitlines()[0]) from error
            raise
        ids = math.prod(self.schedule.shape(step))
        return loss + unknown_cost(y, self.vocabulary) / ids

    def clip(self) -> Tensor:
        """Scale the gradients down to the norm `train.grad_clip`; return their norm before, ()."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        limit = self.config.train.grad_clip or float("inf")
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def update(self, learning_rate: float, skip: Tensor) -> None:
        """Update the weights unless `skip`, at AdamW's `learning_rate`; Muon's is in proportion."""
        lr_factor = learning_rate / self.config.train.learning_rate
        if self.device.type != "cpu" and not self.scaler.is_enabled():
            for optimizer in self.optimizers:
                optimizer.step(lr_factor, skip)
        elif not skip:
            for optimizer in self.optimizers:
                self.scaler.step(optimizer, lr_factor)
        self.scaler.update()

    def follow(self, schedule: Schedule) -> None:
        """Use `schedule` from the next step on. Call this after each change of its plans."""
        self.schedule = schedule
        draw = partial(draw_batch, self.config, self.ids, self.ranks, schedule)
        self.batches = Prefetch(draw, schedule.steps)  # the next batch may have another shape

    @property
    def members(self) -> list["TrainStep"]:
        """The steps of an ensemble's members; see EnsembleStep."""
        return [self]

    @property
    def is_ahead(self) -> bool:
        """Whether a call returns before its results are computed, as on an accelerator."""
        return self.device.type != "cpu"

    def read(self, results: list[Result]) -> list[list[list[float]]]:
        """Wait for results; return for each the losses and the norms, [[loss], [norm]]."""
        tensors = torch.stack([torch.stack(result) for result in results])  # (calls, 2[, K])
        numbers: list[list[list[float]]] = tensors.view(len(results), 2, -1).tolist()
        return numbers

    def is_failure(self, loss: float, norm: float) -> bool:
        """Return whether a step with these results counts as a sign of divergence.

        In float16 gradients overflow now and then, until the scaler finds its scale.
        """
        may_overflow = self.scaler.is_enabled() and self.scaler.get_scale() >= 1
        return not (math.isfinite(loss) and (may_overflow or math.isfinite(norm)))

    def probe(self, step: int) -> None:
        """Compute the gradients of `step` and discard them, to measure how long that takes."""
        self.model.train()  # a loaded model is in evaluation mode, which is faster
        self.forward_and_backward(step, synchronise=False)
        self.model.zero_grad(set_to_none=True)
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def rehearse(self) -> None:
        """Compute the gradients of one batch of each shape in the schedule."""
        first_of = {self.schedule.shape(step): step for step in (self.schedule.steps, 0)}
        for step in first_of.values():
            self.forward_and_backward(step)

    def _out_of_memory(self, x: Tensor, reason: str) -> TrainingError:
        """Return an error that advises a larger `train.accumulation`, or a smaller model."""
        train, (B, T) = self.config.train, x.shape
        windows = self.backward.windows_at_once(-(-B // train.accumulation), T)
        divisors = (n for n in range(train.accumulation + 1, B + 1) if train.batch_size % n == 0)
        enough = next((n for n in divisors if -(-B // n) < windows), None)
        advice = "a smaller model.T, C or n_layer"
        if enough is not None:
            advice = f"train.accumulation={enough}, which changes no result but rounding"
        return TrainingError(
            f"not enough memory on {self.device} for {counted(windows, 'window')} of {T} "
            f"characters at once ({reason:.150}); use {advice}"
        )

    def state_dict(self) -> TrainingState:
        """Return the optimizers' state and, in float16, the scale of the gradients."""
        tensors = {
            f"{i}.{name}": array
            for i, optimizer in enumerate(self.optimizers)
            for name, array in optimizer.state_dict().items()
        }
        return TrainingState(tensors, {"scaler": self.scaler.state_dict()})

    def load_state_dict(self, state: TrainingState) -> None:
        """Copy the result of `state_dict` into the optimizers and the scaler.

        Raises:
            ValueError, KeyError, TypeError: it is the state of another model.
        """
        by_optimizer: list[Tensors] = [{} for _ in self.optimizers]
        for name, array in state.tensors.items():
            i, _, rest = name.partition(".")
            by_optimizer[int(i)][rest] = array
        for optimizer, tensors in zip(self.optimizers, by_optimizer, strict=True):
            optimizer.load_state_dict(tensors)
        scaler = state.numbers["scaler"]
        if not all(isinstance(number, int | float) for number in scaler.values()):
            raise TypeError("expected numbers as scaler")
        if scaler:  # empty unless the run was in float16 before
            self.scaler.load_state_dict(scaler)


def draw_batch(
    config: Config, ids: Ids, ranks: Ranks, schedule: Schedule, step: int
) -> tuple[Tensor, Tensor]:
    """Return this rank's windows of a step's batch: x, with token dropout, and y, on the CPU.

    Their shape is (B, T) of the schedule, with B divided among the ranks.
    """
    B, T = schedule.shape(step)
    x, y = batch(ids, B, T, seed=config.seed, step=step)
    if config.model.character_dropout:
        x = token_dropout(x, config.model.character_dropout, seed=config.seed, step=step)
    share = ranks.share(B)
    return x[share], y[share]
