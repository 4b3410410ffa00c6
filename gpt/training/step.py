"""One update of the weights."""

import logging
import math
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.device import (
    autocast,
    compile_model,
    free_cached_memory,
    move,
    select_precision,
)
from gpt.distributed import add_up, parallel, rank, sharing, unsynchronised, world_size
from gpt.errors import TrainingError, counted
from gpt.evaluation.loss import unknown_cost
from gpt.model.dropout import set_generator
from gpt.model.transformer import GPT, cross_entropy
from gpt.runs.format import Tensors, TrainingState
from gpt.seeds import derive_seed
from gpt.sharding import shard, shards, whole
from gpt.text.batches import batch, token_dropout
from gpt.text.prefetch import Prefetch
from gpt.text.vocabulary import Ids, Vocabulary
from gpt.training.gradients import draws_masks, make_gradients
from gpt.training.linear_cross_entropy import fuses_head, linear_cross_entropy
from gpt.training.optimizer import make_optimizers
from gpt.training.schedule import batch_shape, learning_rate
from gpt.training.teacher import Teacher

log = logging.getLogger(__name__)


Result = tuple[Tensor, Tensor]
"""A loss and the norm of its gradient, () each; or (K,), of K members."""


class TrainStep:
    """Calling it with a step takes that step's batch and updates the model once.

    The batch, its token dropout and the dropout masks are pure functions of (seed, step), so a step
    repeats exactly, whatever ran before it; `state_dict` holds all that one step leaves to the
    next. The batch is drawn while the step before is computed; it is computed in micro-batches,
    and each of them as gradients.py says. Of several ranks, each computes its share of the windows;
    with `train.parallel` fsdp it is left with its shard of the model.
    """

    def __init__(
        self,
        model: GPT,
        ids: Ids,
        config: Config,
        device: torch.device,
        vocabulary: Vocabulary | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        self.model, self.ids, self.config, self.device = model, ids, config, device
        self.vocabulary, self.teacher = vocabulary, teacher
        self.rank, self.ranks, self.share = rank(), world_size(), sharing()
        # weak, so that a step that is no longer used frees its threads and files at once
        me = weakref.proxy(self)
        self.draw = lambda step: me._draw(step)
        self.batches = Prefetch(self.draw, config.train.steps)
        for block in model.blocks[: config.train.freeze]:
            block.requires_grad_(False)
        self.masks = torch.Generator(device) if draws_masks(config.model) else None
        if self.masks is not None:
            set_generator(model, self.masks)
        self.sharded = shards(config.train)
        if self.sharded:
            shard(model, model.blocks, device)
        self.micro_batches = config.train.accumulation
        self.precision = select_precision(config.train.precision, device)
        V = model.head.out_features
        self.fuses_head = teacher is None and fuses_head(config, V, device)
        self.gradients = make_gradients(
            *(lambda x, y: me.loss(x, y), model, config, device),
            lambda: unsynchronised(me.forward),
        )
        products = self.precision if self.precision == torch.bfloat16 else torch.float32
        self.optimizers = make_optimizers(model, config.train, products)
        # float16 has few exponents: gradients are scaled up so that none is lost (arXiv:1710.03740)
        self.scaler: Any = torch.amp.GradScaler(
            device.type, enabled=self.precision == torch.float16
        )
        mode = "off" if self.sharded else config.train.compile
        compiled = compile_model(model, mode, device, self._rehearse)
        self.forward = parallel(compiled, self._rehearse)

    def __call__(self, step: int, scale: float = 1.0) -> Result:
        """Returns the batch's loss before the update and the gradient's norm before clipping, ().

        The loss counts unknown ids as evaluation does. The learning rates are the schedule's, times
        `scale`. If the loss or the norm is NaN or infinite, the update is skipped, of all
        parameters together. An accelerator selects by itself: the CPU waits for it when the results
        are read, and else only in float16.

        Raises TrainingError if memory runs out, unless `train.auto_batch` finds a way.
        """
        config = self.config.train
        lr_factor = scale * learning_rate(step, config) / config.learning_rate
        self.model.train()
        loss = add_up(self._backward(step))
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = whole(
            torch.nn.utils.clip_grad_norm_(
                self.model.parameters(), config.grad_clip or float("inf")
            )
        )
        skip = ~(loss.isfinite() & norm.isfinite())
        if self.device.type != "cpu" and not self.scaler.is_enabled():
            for optimizer in self.optimizers:
                optimizer.step(lr_factor, skip)
        elif not skip:
            for optimizer in self.optimizers:
                self.scaler.step(optimizer, lr_factor)
        self.scaler.update()
        return loss, norm

    @property
    def members(self) -> list["TrainStep"]:
        """The steps of an ensemble's members; see EnsembleStep."""
        return [self]

    @property
    def is_ahead(self) -> bool:
        """Whether a call returns before its results are known: on an accelerator."""
        return self.device.type != "cpu"

    def read(self, results: list[Result]) -> list[list[list[float]]]:
        """The losses and the norms of each call, of each member, once they are computed."""
        tensors = torch.stack([torch.stack(result) for result in results])  # (calls, 2[, K])
        numbers: list[list[list[float]]] = tensors.view(len(results), 2, -1).tolist()
        return numbers

    def is_failure(self, loss: float, norm: float) -> bool:
        """Whether an update of these results says that training diverges.

        In float16 gradients overflow now and then, until the scaler has found its scale.
        """
        overflow = self.scaler.is_enabled() and self.scaler.get_scale() >= 1
        return not (math.isfinite(loss) and (overflow or math.isfinite(norm)))

    def _backward(self, step: int, *, synchronise: bool = True) -> Tensor:
        """Leave the gradients of a step's batch in the model; returns this rank's part of the loss.

        The gradients are the ranks' together, unless they need not `synchronise`.
        """
        x, y = self.batches(step)
        while True:
            self.model.zero_grad(set_to_none=True)
            loss = torch.zeros((), dtype=torch.float32, device=self.device)
            # times the ranks, as DDP leaves the mean of what they are to add up to
            ranks = torch.full((), self.ranks, dtype=torch.float32, device=self.device)
            scale = self.scaler.scale(ranks)
            try:
                self._seed_dropout(step)
                for micro_batch, is_last in self._micro_batches(x, y):
                    last = is_last and synchronise
                    loss += self.gradients(*micro_batch, scale, last=last)
            except RuntimeError as error:  # torch.OutOfMemoryError on a GPU, nameless on a CPU
                if not _is_out_of_memory(error):
                    raise
                self._divide_further(x, str(error).splitlines()[0])
            else:
                ids = math.prod(batch_shape(step, self.config))
                return loss + unknown_cost(y, self.vocabulary) / ids

    def _seed_dropout(self, step: int) -> None:
        """Seed the generator of the dropout masks, if there are any, by the seed and `step`."""
        if self.masks is not None:
            purpose = f"dropout of rank {self.rank}" if self.rank else "dropout"
            self.masks.manual_seed(derive_seed(self.config.seed, purpose, step))

    def replan(self, config: Config) -> None:
        """From the next step on, follow the plans of this config, which differs in nothing else."""
        self.config = config
        self.batches = Prefetch(self.draw, config.train.steps)  # the next may be of another shape

    def probe(self, step: int) -> None:
        """Compute the gradients of `step` and discard them, to measure how long that takes."""
        self.model.train()  # a model that was loaded is not: without dropout it is faster
        self._backward(step, synchronise=False)
        self.model.zero_grad(set_to_none=True)
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What these windows add to the mean loss of the whole batch, ()."""
        if self.fuses_head:
            with autocast(self.device, self.precision):
                hidden = self.model.hidden(x).flatten(0, 1)  # (B T, C)
            weight = self.model.head.weight
            summed = linear_cross_entropy(hidden, weight, y.flatten(), self.precision)
            return summed / self._characters
        with autocast(self.device, self.precision):
            logits = self.forward(x)
            targets = y if self.teacher is None else self.teacher.targets(x, y)
        return cross_entropy(logits, targets, reduction="sum") / self._characters

    @property
    def _characters(self) -> int:
        """In the whole batch, of all ranks."""
        return self.config.train.batch_size * self.config.model.T

    def _divide_further(self, x: Tensor, reason: str) -> None:
        """More micro-batches, if that is allowed. Raises TrainingError, with advice, if not."""
        B, T = x.shape
        at_once = self.gradients.windows_at_once(-(-B // self.micro_batches), T)
        further = range(self.micro_batches + 1, B + 1)
        more = next((n for n in further if B % n == 0 and B // n < at_once), None)
        problem = (
            f"not enough memory on {self.device} for {counted(at_once, 'window')} of {T} characters"
        )
        if more is None:
            raise TrainingError(f"{problem} ({reason:.150}); use a smaller model.T, C or n_layer")
        if not self.config.train.auto_batch:
            divides = self.config.train.batch_size % more == 0
            by_hand = f"train.accumulation={more} or " if divides else ""
            raise TrainingError(
                f"{problem} at once ({reason:.150}); with {by_hand}train.auto_batch=true there are "
                f"{B // more} at once, and the batch stays what it is"
            )
        log.warning("%s at once; continuing with train.accumulation %d", problem, more)
        self.micro_batches = more
        free_cached_memory(self.device)

    def _draw(self, step: int) -> tuple[Tensor, Tensor]:
        """This rank's share of a step's batch: x, with token dropout, and y, (B, T), on the CPU."""
        config, (B, T) = self.config, batch_shape(step, self.config)
        x, y = batch(self.ids, B, T, seed=config.seed, step=step)
        if config.model.character_dropout:
            x = token_dropout(x, config.model.character_dropout, seed=config.seed, step=step)
        mine = self.share(B)
        return x[mine], y[mine]

    def _micro_batches(self, x: Tensor, y: Tensor) -> Iterator[tuple[tuple[Tensor, Tensor], bool]]:
        """A batch in micro-batches on the device, and whether each is the last one.

        Of each, x and y, (B / micro_batches, T).
        """
        divide = torch.tensor_split if self.sharded else torch.chunk  # as many on each rank
        xs, ys = (divide(t, self.micro_batches) for t in (x, y))
        for i, (x_micro, y_micro) in enumerate(zip(xs, ys, strict=True), start=1):
            yield (move(x_micro, self.device), move(y_micro, self.device)), i == len(xs)

    def _rehearse(self, forward: Any) -> None:
        """Compute a batch of each shape that the schedule brings."""
        self.forward = forward
        first_of = {batch_shape(step, self.config): step for step in (self.config.train.steps, 0)}
        for step in first_of.values():
            self._backward(step)

    def state_bytes(self) -> int:
        """The memory that the optimizers' averages take."""
        tensors = (
            t for optimizer in self.optimizers for ts in optimizer.state.values() for t in ts
        )
        return sum(t.nbytes for t in tensors)

    def state_dict(self) -> TrainingState:
        """The optimizers' state, the micro-batches and, in float16, the gradient's scale."""
        tensors = {
            f"{i}.{name}": array
            for i, optimizer in enumerate(self.optimizers)
            for name, array in optimizer.state_dict().items()
        }
        numbers = {"micro_batches": self.micro_batches, "scaler": self.scaler.state_dict()}
        return TrainingState(tensors, numbers)

    def load_state_dict(self, state: TrainingState) -> None:
        """Copy what `state_dict` gave into the optimizers and the scaler.

        Raises:
            ValueError, KeyError, TypeError: it is not of this model.
        """
        by_optimizer: list[Tensors] = [{} for _ in self.optimizers]
        for name, array in state.tensors.items():
            i, _, rest = name.partition(".")
            by_optimizer[int(i)][rest] = array
        for optimizer, tensors in zip(self.optimizers, by_optimizer, strict=True):
            optimizer.load_state_dict(tensors)
        micro_batches, scaler = state.numbers["micro_batches"], state.numbers["scaler"]
        if not all(isinstance(number, int | float) for number in (micro_batches, *scaler.values())):
            raise TypeError("expected numbers as micro_batches and scaler")
        if self.config.train.auto_batch:
            self.micro_batches = max(self.micro_batches, int(micro_batches))
        if scaler:  # empty unless the run was in float16 before
            self.scaler.load_state_dict(scaler)


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
