"""The gradient of a micro-batch, added to the parameters' .grad.

Two ways, behind `Gradients`: plain backward; and, on a CPU, workers that each take some of the
windows through the whole model.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from gpt.config.schema import Config, ModelConfig
from gpt.device import set_threads_here
from gpt.distributed import world_size
from gpt.model.transformer import GPT
from gpt.sharding import shards

# Numbers in the residual stream (B T C) that a thread of a CPU takes through the model at once. The
# MLP's activations, four times as many, have 16 MB then; those of 32 MB malloc would give back, and
# the system clear again each time: a sixth of a step (scripts/experiments.md).
CHUNK_NUMBERS = 2**20
MAX_WORKERS = 8  # each holds a gradient of every parameter until it is added to the sum

Loss = Callable[[Tensor, Tensor], Tensor]
"""x, y (B, T) -> what these windows add to the mean loss of the whole batch, ()."""


class Gradients(Protocol):
    """A way to compute the gradients of a micro-batch."""

    def __call__(self, x: Tensor, y: Tensor, scale: Tensor, *, last: bool = True) -> Tensor:
        """Add to .grad the gradient of these windows' loss, times `scale`; returns that loss.

        `last`: no micro-batch follows, so .grad is to be what all ranks' gradients come to.
        """

    def windows_at_once(self, B: int, T: int) -> int:
        """How many of B windows of T are in memory at the same time."""


class PlainBackward:
    """`loss.backward()`, which leaves gradients in .grad through autograd's hooks, as DDP needs.

    `divides`: windows are computed a few at a time, as on a CPU, for a model of C channels. All but
    the last of a batch are computed in the context `unsynchronised`.
    """

    def __init__(
        self,
        loss: Loss,
        C: int,
        unsynchronised: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        divides: bool = False,
    ) -> None:
        self.loss, self.C, self.divides = loss, C, divides
        self.unsynchronised = unsynchronised

    def __call__(self, x: Tensor, y: Tensor, scale: Tensor, *, last: bool = True) -> Tensor:
        """See Gradients."""
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        chunks = list(_chunks(x, y, self._count(*x.shape)))
        for i, chunk in enumerate(chunks, start=1):
            with nullcontext() if last and i == len(chunks) else self.unsynchronised():
                loss = self.loss(*chunk)
                (scale * loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def windows_at_once(self, B: int, T: int) -> int:
        """See Gradients."""
        return -(-B // self._count(B, T))

    def _count(self, B: int, T: int) -> int:
        return chunk_count(B, T, self.C, workers=1) if self.divides else 1


class ThreadedBackward:
    """Each worker takes some windows through the whole model; gradients are added in their order.

    Threads that share every operation instead wait for each other at each (`python scripts/bench.py
    workers` measures both). There are at most MAX_WORKERS, so at most that many gradients and one
    more of each parameter, on any number of cores. Further threads share the workers' operations:
    16 threads are 8 workers of 2, 64 are 8 of 8, and take no more memory (scripts/experiments.md).
    """

    def __init__(self, loss: Loss, parameters: Sequence[Tensor], C: int, threads: int) -> None:
        self.loss, self.parameters, self.C, self.threads = loss, parameters, C, threads
        self.workers = min(threads, MAX_WORKERS)
        self.pool = ThreadPoolExecutor(self.workers)

    def __call__(self, x: Tensor, y: Tensor, scale: Tensor, *, last: bool = True) -> Tensor:
        """See Gradients."""
        B, T = x.shape
        chunks = list(_chunks(x, y, chunk_count(B, T, self.C, self.workers)))
        threads = max(1, self.threads // min(len(chunks), self.workers))
        total = torch.zeros((), dtype=torch.float32)
        futures: list[Future[tuple[Tensor, tuple[Tensor, ...]]]] = []
        try:  # each is forgotten as it is added, also where one has failed
            for chunk in chunks:
                futures.append(self.pool.submit(self._compute, *chunk, scale, threads))
                if len(futures) > self.workers:
                    total += self._add(*futures.pop(0).result())
            while futures:
                total += self._add(*futures.pop(0).result())
        except Exception:
            wait(futures)  # they hold memory, too
            raise
        return total

    def windows_at_once(self, B: int, T: int) -> int:
        """See Gradients."""
        return windows_at_once(B, T, self.C, self.workers)

    def _compute(
        self, x: Tensor, y: Tensor, scale: Tensor, threads: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        set_threads_here(threads)
        loss = self.loss(x, y)
        return loss.detach(), torch.autograd.grad(scale * loss, self.parameters)

    def _add(self, loss: Tensor, gradients: Iterable[Tensor]) -> Tensor:
        """Add these gradients to the model's; the loss is handed on."""
        for p, gradient in zip(self.parameters, gradients, strict=True):
            # laid out as p is: AdamW's kernel does not ask
            p.grad = gradient.contiguous() if p.grad is None else p.grad.add_(gradient)
        return loss


def make_gradients(
    loss: Loss,
    model: GPT,
    config: Config,
    device: torch.device,
    unsynchronised: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Gradients:
    """Workers on a CPU, but not with dropout, whose masks are drawn one after the other, nor
    compiled, as the compiler does not take two threads at a time, nor where ranks are the workers;
    else plain backward.
    """
    C = config.model.C
    if worker_count(config, device) > 1:
        trained = [p for p in model.parameters() if p.requires_grad]
        return ThreadedBackward(loss, trained, C, torch.get_num_threads())
    divides = device.type == "cpu" and not shards(config.train)  # as many passes on each rank
    return PlainBackward(loss, C, unsynchronised, divides=divides)


def worker_count(config: Config, device: torch.device) -> int:
    """The workers of `make_gradients`; 1 stands for plain backward."""
    if not takes_threads(config, device):
        return 1
    return min(threads_each(torch.get_num_threads(), config, device), MAX_WORKERS)


def threads_each(threads: int, config: Config, device: torch.device) -> int:
    """How many of these threads compute each member of an ensemble, if members train together."""
    K = config.model.ensemble
    return max(1, threads // K) if takes_threads(config, device) else threads


def takes_threads(config: Config, device: torch.device) -> bool:
    """Whether threads can each take a model through a batch: see `make_gradients`."""
    alone = world_size() == 1  # DDP takes one thread's gradients, as they are computed
    plain = draws_masks(config.model) or config.train.compile == "on"
    return device.type == "cpu" and alone and not plain


def draws_masks(model: ModelConfig) -> bool:
    """Whether a forward pass in training draws dropout masks."""
    return model.dropout > 0 or model.attention_dropout > 0


def chunk_count(B: int, T: int, C: int, workers: int) -> int:
    """Return the largest number of chunks that `_chunks` may cut B windows of T into.

    Each worker gets some of them, and none is too large.
    """
    rounds = math.ceil(B * T * C / CHUNK_NUMBERS / workers)
    return min(B, workers * rounds)


def windows_at_once(B: int, T: int, C: int, workers: int) -> int:
    """How many of B windows of T are in memory at the same time, on a CPU."""
    return min(B, workers * -(-B // chunk_count(B, T, C, workers)))


def _chunks(x: Tensor, y: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut the windows into `count` chunks or fewer: 4 windows in 3 chunks are 2 chunks of 2."""
    return zip(x.chunk(count), y.chunk(count), strict=True)
