"""Backward passes that add the gradients of a micro-batch to the parameters' `.grad`.

PlainBackward is `loss.backward()`. On a CPU, ThreadedBackward takes different windows through the
whole model in several threads.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.device import set_threads_here
from gpt.distributed.ddp import unsynchronised
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.training.batch_loss import BatchLoss

# Numbers of the residual stream (B T C) that one CPU thread takes through the model at a time. The
# MLP's activations are four times as many, 16 MB. Above 32 MB, malloc would return the memory and
# the system clear it again each time: a sixth of a step (scripts/experiments.md).
CHUNK_NUMBERS = 2**20
# Most workers; each holds a gradient of every parameter until it is added to the sum.
MAX_WORKERS = 8


class PlainBackward:
    """Backward pass by autograd, whose hooks DDP needs.

    With `divides`, as on a CPU, it takes a few windows at a time through a model of C channels.
    """

    def __init__(self, loss: BatchLoss, C: int, *, divides: bool = False) -> None:
        self.loss, self.C, self.divides = loss, C, divides

    def __call__(self, x: Tensor, y: Tensor, scale: Tensor, *, last: bool = True) -> Tensor:
        """Add the gradient of the loss of x and y (B, T), times `scale`; return the loss.

        Set `last` if no other micro-batch follows: DDP then averages the gradients of all ranks.
        """
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        count = chunk_count(len(x), x.shape[1], self.C, workers=1) if self.divides else 1
        chunks = list(_chunks(x, y, count))
        for i, chunk in enumerate(chunks, start=1):
            averages = last and i == len(chunks)
            with nullcontext() if averages else unsynchronised(self.loss.forward):
                loss = self.loss(*chunk)
                (scale * loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def windows_at_once(self, B: int, T: int) -> int:
        """Return how many of B windows of T characters are in memory at the same time."""
        return windows_at_once(B, T, self.C, workers=1) if self.divides else B


class ThreadedBackward:
    """Backward pass of several workers, each for some of the windows.

    Threads that share every operation would wait for each other at each of them (`python
    scripts/bench.py workers` measures both). Gradients are added in the order of the windows.

    There are at most MAX_WORKERS, which limits the memory for gradients. More threads share the
    workers' operations: 16 threads are 8 workers of 2 (scripts/experiments.md).
    """

    def __init__(self, loss: BatchLoss, parameters: Sequence[Tensor], C: int, threads: int) -> None:
        self.loss, self.parameters, self.C, self.threads = loss, parameters, C, threads
        self.workers = min(threads, MAX_WORKERS)
        self.pool = ThreadPoolExecutor(self.workers)

    def __call__(self, x: Tensor, y: Tensor, scale: Tensor, *, last: bool = True) -> Tensor:
        """Add the gradient of the loss of x and y (B, T), times `scale`; return the loss."""
        B, T = x.shape
        chunks = list(_chunks(x, y, chunk_count(B, T, self.C, self.workers)))
        threads = max(1, self.threads // min(len(chunks), self.workers))
        total = torch.zeros((), dtype=torch.float32)
        futures: list[Future[tuple[Tensor, tuple[Tensor, ...]]]] = []
        try:  # pop futures so that their tensors are freed, even on error
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
        """Return how many of B windows of T characters are in memory at the same time."""
        return windows_at_once(B, T, self.C, self.workers)

    def _compute(
        self, x: Tensor, y: Tensor, scale: Tensor, threads: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the loss of these windows and its gradients, times `scale`."""
        set_threads_here(threads)
        loss = self.loss(x, y)
        return loss.detach(), torch.autograd.grad(scale * loss, self.parameters)

    def _add(self, loss: Tensor, gradients: Iterable[Tensor]) -> Tensor:
        """Add the gradients to `.grad`; return the loss."""
        for p, gradient in zip(self.parameters, gradients, strict=True):
            # contiguous, because AdamW's kernel does not check strides
            p.grad = gradient.contiguous() if p.grad is None else p.grad.add_(gradient)
        return loss


def takes_threads(config: Config, device: torch.device, ranks: Ranks = SINGLE) -> bool:
    """Return whether threads can each take a model through a batch, as ThreadedBackward does.

    They cannot with dropout, whose masks are drawn one after the other. Nor can torch.compile run
    in two threads at a time, and DDP takes the gradients of one thread.
    """
    plain = config.model.dropout > 0 or config.train.compile == "on"
    return device.type == "cpu" and ranks.size == 1 and not plain


def threads_each(threads: int, config: Config, device: torch.device, ranks: Ranks = SINGLE) -> int:
    """Return how many of `threads` compute each member of an ensemble."""
    K = config.model.ensemble
    return max(1, threads // K) if takes_threads(config, device, ranks) else threads


def worker_count(config: Config, device: torch.device, ranks: Ranks = SINGLE) -> int:
    """Return the number of workers for each member; 1 stands for PlainBackward."""
    if not takes_threads(config, device, ranks):
        return 1
    return min(threads_each(torch.get_num_threads(), config, device, ranks), MAX_WORKERS)


def chunk_count(B: int, T: int, C: int, workers: int) -> int:
    """Return the largest number of chunks into which `_chunks` may divide B windows.

    Each worker gets equally many, and a chunk has about CHUNK_NUMBERS numbers of the stream or
    fewer.
    """
    rounds = math.ceil(B * T * C / CHUNK_NUMBERS / workers)
    return min(B, workers * rounds)


def windows_at_once(B: int, T: int, C: int, workers: int) -> int:
    """Return how many of B windows of T characters `workers` hold in memory at the same time."""
    return min(B, workers * -(-B // chunk_count(B, T, C, workers)))


def _chunks(x: Tensor, y: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Divide the windows into at most `count` chunks: 4 windows in 3 chunks are 2 chunks of 2."""
    return zip(x.chunk(count), y.chunk(count), strict=True)
