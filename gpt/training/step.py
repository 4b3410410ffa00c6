"""One update of the weights."""

import logging
import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.device import autocast, compile_model, select_precision
from gpt.errors import TrainingError
from gpt.model.transformer import GPT, cross_entropy
from gpt.seeds import derive_seed
from gpt.text.batches import batch, token_dropout
from gpt.text.vocabulary import Ids
from gpt.training.optimizer import learning_rate, make_optimizers

log = logging.getLogger(__name__)

# Numbers in the stream (B T C) that a thread of a CPU takes through the model at once. The MLP's
# activations, four times as many, have 16 MB then; those of 32 MB malloc would give back, and the
# system clear anew each time: a sixth of a step (scripts/experiments.md).
AT_ONCE = 2**20


class TrainStep:
    """Calling it with a step draws that step's batch and updates the model once.

    The batch, its token dropout and the dropout masks are pure functions of (seed, step), so a
    step repeats exactly, whatever ran before it; `state_dict` holds all that one step leaves to
    the next.

    On a CPU each thread takes some of the windows through the whole model, forward and back, and
    the gradients, a set for each thread, are added up in the windows' order. Threads that share
    every operation instead wait for each other at each (`python scripts/bench.py shares` measures
    both). With dropout they must, as its masks are drawn one after the other; and compiled, as the
    compiler does not take two threads at a time. A large batch is taken a few windows at a time.
    """

    def __init__(self, model: GPT, ids: Ids, config: Config, device: torch.device) -> None:
        self.model, self.ids, self.config, self.device = model, ids, config, device
        self.parameters = list(model.parameters())
        self.pieces = config.train.accumulation
        shared = device.type == "cpu" and not config.model.dropout and config.train.compile != "on"
        self.shares = torch.get_num_threads() if shared else 1
        self.pool = ThreadPoolExecutor(self.shares)
        self.precision = select_precision(config.train.precision, device)
        products = self.precision if self.precision == torch.bfloat16 else torch.float32
        self.optimizers = make_optimizers(model, config.train, products)
        # float16 has few exponents: gradients are scaled up so that none is lost (arXiv:1710.03740)
        self.scaler: Any = torch.amp.GradScaler(
            device.type, enabled=self.precision == torch.float16
        )
        self.forward = compile_model(model, config.train.compile, device, self._rehearse)

    def __call__(self, step: int, scale: float = 1.0) -> tuple[float, float]:
        """Returns the batch's loss before the update and the gradient's norm before clipping.

        The learning rates are the schedule's, times `scale`. If the loss or the norm is no finite
        number, the update is not made. (In float16 the norm may overflow: the scaler sees to it.)

        Raises TrainingError if memory ends, unless `train.auto_batch` finds a way.
        """
        config = self.config.train
        share = scale * learning_rate(step, config) / config.learning_rate
        self.model.train()
        loss = self._gradients(step)
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), config.grad_clip or float("inf")
        )
        found = loss.item(), norm.item()
        if is_finite(*found, scaled=self.scaler.is_enabled()):
            for optimizer in self.optimizers:
                self.scaler.step(optimizer, share)
        self.scaler.update()
        return found

    def _gradients(self, step: int) -> Tensor:
        """Leave the gradients of a step's batch in the model; the loss."""
        while True:
            self.model.zero_grad(set_to_none=True)
            torch.manual_seed(derive_seed(self.config.seed, "dropout", step))
            loss = torch.zeros((), device=self.device)
            try:
                for x, y in self._pieces(step):
                    loss += self._backward(self.forward, x, y)
            except RuntimeError as error:  # torch.OutOfMemoryError on a GPU, nameless on a CPU
                if not _is_out_of_memory(error):
                    raise
                self._divide_further(step, str(error).splitlines()[0])
            else:
                return loss

    def _divide_further(self, step: int, reason: str) -> None:
        """More pieces, if that is allowed. Raises TrainingError, with advice, if not."""
        B, T = self._shape(step)
        piece = -(-B // self.pieces)
        at_once = min(piece, self.shares * -(-piece // self._parts(piece, T)))
        further = range(self.pieces + 1, B + 1)
        more = next((n for n in further if B % n == 0 and B // n < at_once), None)
        told = f"not enough memory on {self.device} for {at_once} windows of {T} characters"
        if more is None:
            raise TrainingError(f"{told} ({reason:.150}); use a smaller model.T, C or n_layer")
        if not self.config.train.auto_batch:
            divides = self.config.train.batch_size % more == 0
            by_hand = f"train.accumulation={more} or " if divides else ""
            raise TrainingError(
                f"{told} at once ({reason:.150}); with {by_hand}train.auto_batch=true there are "
                f"{B // more} at once, and the batch stays what it is"
            )
        log.warning("%s at once; going on with train.accumulation %d", told, more)
        self.pieces = more
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _shape(self, step: int) -> tuple[int, int]:
        """B and T of a step's whole batch."""
        T = window(self.config, step)
        return self.config.train.batch_size * self.config.model.T // T, T

    def _pieces(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batch of a step in `accumulation` pieces on the device, x and y (B / pieces, T)."""
        config, pieces, (B, T) = self.config, self.pieces, self._shape(step)
        x, y = batch(self.ids, B, T, seed=config.seed, step=step)
        if config.model.character_dropout:
            x = token_dropout(x, config.model.character_dropout, seed=config.seed, step=step)
        if self.device.type == "cuda":
            x, y = x.pin_memory(), y.pin_memory()
        for x_piece, y_piece in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
            yield (
                x_piece.to(self.device, non_blocking=True),
                y_piece.to(self.device, non_blocking=True),
            )

    def _backward(self, forward: Any, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradient of this piece's part of the loss; returns that part."""
        scale = self.scaler.scale(torch.ones((), device=self.device))
        loss = torch.zeros((), device=self.device)
        n = self._parts(*x.shape)
        parts = list(zip(x.chunk(n), y.chunk(n), strict=True))
        if self.shares == 1 or len(parts) == 1:
            for part in parts:
                loss += self._add(*self._compute(forward, scale, *part))
            return loss
        threads = max(1, torch.get_num_threads() // min(len(parts), self.shares))
        futures: list[Future[Any]] = []
        try:  # each is forgotten as it is added, also where one has failed
            for part in parts:
                futures.append(self.pool.submit(self._compute, forward, scale, *part, threads))
                if len(futures) > self.shares:
                    loss += self._add(*futures.pop(0).result())
            while futures:
                loss += self._add(*futures.pop(0).result())
        except Exception:
            wait(futures)  # they hold memory, too
            raise
        return loss

    def _parts(self, B: int, T: int) -> int:
        """How many parts B windows of T are taken in: some for each thread, none too large."""
        if self.device.type != "cpu":
            return 1
        rounds = math.ceil(B * T * self.config.model.C / AT_ONCE / self.shares)
        return min(B, self.shares * rounds)

    def _compute(
        self, forward: Any, scale: Tensor, x: Tensor, y: Tensor, threads: int | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What these windows add to the batch's mean loss; the gradients of that, times `scale`.

        By so many threads, if others compute other parts.
        """
        if threads is not None:
            torch.set_num_threads(threads)  # for what is computed in this thread
        with autocast(self.device, self.precision):
            logits = forward(x)
        characters = self.config.train.batch_size * self.config.model.T  # in the whole batch
        loss = cross_entropy(logits, y, reduction="sum") / characters
        return loss.detach(), torch.autograd.grad(loss, self.parameters, scale)

    def _add(self, loss: Tensor, gradients: tuple[Tensor, ...]) -> Tensor:
        """Add these gradients to the model's; the loss is handed on."""
        for p, gradient in zip(self.parameters, gradients, strict=True):
            # laid out as p is: AdamW's kernel does not ask
            p.grad = gradient.contiguous() if p.grad is None else p.grad.add_(gradient)
        return loss

    def _rehearse(self, forward: Any) -> None:
        x, y = next(self._pieces(0))
        self._backward(forward, x, y)

    def state_bytes(self) -> int:
        """The memory that the optimizers' averages take."""
        tensors = (
            t for optimizer in self.optimizers for ts in optimizer.state.values() for t in ts
        )
        return sum(t.nbytes for t in tensors)

    def state_dict(self) -> dict[str, Any]:
        """The optimizers' averages, the pieces of a batch and, in float16, the gradient's scale."""
        return {
            "pieces": self.pieces,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        if self.config.train.auto_batch:
            self.pieces = max(self.pieces, state["pieces"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        if state["scaler"]:  # empty unless the run was in float16 before
            self.scaler.load_state_dict(state["scaler"])


def short_steps(config: Config) -> int:
    """How many steps, the first ones, have windows of `first_window`, if that is set."""
    return 5 * config.train.steps // 6


def window(config: Config, step: int) -> int:
    """How many characters each window of a step has.

    While windows are short (arXiv:2108.06084), attention costs less, and there is enough to learn.
    """
    first = config.train.first_window or config.model.T
    return first if step < short_steps(config) else config.model.T


def is_finite(loss: float, norm: float, *, scaled: bool) -> bool:
    """Whether an update can be made of it; `scaled` gradients, of float16, may overflow."""
    return math.isfinite(loss) and (scaled or math.isfinite(norm))


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
