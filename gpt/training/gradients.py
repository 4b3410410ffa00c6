"""The loss of a batch and its gradients, on a CPU by several threads."""

import math
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.device import autocast, select_precision, set_threads_here
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.model.transformer import GPT, LARGE_VOCABULARY, cross_entropy
from gpt.training.linear_cross_entropy import linear_cross_entropy
from gpt.training.teacher import Teacher

# Numbers of the residual stream (B T C) that one CPU thread takes through the model at a time. The
# MLP's activations are four times as many, 16 MB. Above 32 MB, malloc would return the memory and
# the system clear it again each time: a sixth of a step (scripts/experiments.md).
CHUNK_NUMBERS = 2**20
# Most workers; each holds a gradient of every parameter until it is added to the sum.
MAX_WORKERS = 8

LossAndGradients = tuple[Tensor, tuple[Tensor, ...]]


class Backward:
    """Adds the gradients of a micro-batch to the parameters' `.grad`.

    On a CPU, a few windows at a time are taken through the whole model, if possible by several
    workers. Threads that share every operation would wait for each other at each of them (`python
    scripts/bench.py workers` measures both). Gradients are added in the order of the windows. More
    threads than MAX_WORKERS share the workers' operations: 16 threads are 8 workers of 2.

    Attributes:
        forward: the model; later, the model compiled or wrapped by DDP.
        workers: the number of workers. A single one uses autograd's hooks, as DDP needs.
    """

    def __init__(
        self,
        config: Config,
        model: GPT,
        device: torch.device,
        ranks: Ranks = SINGLE,
        teacher: Teacher | None = None,
    ) -> None:
        self.forward: Any = model
        self.model, self.device, self.teacher, self.C = model, device, teacher, config.model.C
        self.parameters = [*model.parameters()]
        self.fused = teacher is None and fuses_head(config, model.head.out_features, device, ranks)
        self.precision = select_precision(config.train.precision, device)
        self.characters = config.train.batch_size * config.model.T  # characters of the whole batch
        self.threads = torch.get_num_threads()
        self.workers = worker_count(config, device, ranks)
        self.pool = ThreadPoolExecutor(self.workers)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return what windows x and y (B, T) add to the mean loss of the whole batch, ()."""
        with autocast(self.device, self.precision):
            out = self.model.hidden(x) if self.fused else self.forward(x)  # (B, T, C) or (B, T, V)
            targets = y if self.teacher is None else self.teacher.targets(x, y)
        if not self.fused:
            return cross_entropy(out, targets, reduction="sum") / self.characters
        hidden, weight = out.flatten(0, 1), self.model.head.weight  # (B T, C), (V, C)
        summed = linear_cross_entropy(hidden, weight, y.flatten(), self.precision)
        return summed / self.characters

    def __call__(self, x: Tensor, y: Tensor, scale: Tensor, *, last: bool = True) -> Tensor:
        """Add the gradient of the loss of x and y (B, T), times `scale`; return the loss.

        Set `last` if no other micro-batch follows: DDP then averages the gradients of all ranks.
        """
        B, T = x.shape
        count = chunk_count(B, T, self.C, self.workers) if self.device.type == "cpu" else 1
        chunks = [*zip(x.chunk(count), y.chunk(count), strict=True)]  # 3 of 4 windows are 2 and 2
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        if self.workers == 1:
            for i, chunk in enumerate(chunks, start=1):
                averages = last and i == len(chunks)
                is_ddp = hasattr(self.forward, "no_sync")
                with self.forward.no_sync() if is_ddp and not averages else nullcontext():
                    loss = self.loss(*chunk)
                    (scale * loss).backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            return total
        threads = max(1, self.threads // min(len(chunks), self.workers))
        futures: list[Future[LossAndGradients]] = []
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

    def _compute(self, x: Tensor, y: Tensor, scale: Tensor, threads: int) -> LossAndGradients:
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


def fuses_head(config: Config, V: int, device: torch.device, ranks: Ranks = SINGLE) -> bool:
    """Return whether training without a teacher needs no logits: on a CPU, if V is large.

    A compiler and DDP need the whole forward pass of the model.
    """
    large, compiled = V >= LARGE_VOCABULARY, config.train.compile == "on"
    return large and device.type == "cpu" and not compiled and ranks.size == 1


def takes_threads(config: Config, device: torch.device, ranks: Ranks = SINGLE) -> bool:
    """Return whether threads can each take a model through a part of the batch.

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
    """Return the number of workers for each member of an ensemble."""
    if not takes_threads(config, device, ranks):
        return 1
    return min(threads_each(torch.get_num_threads(), config, device, ranks), MAX_WORKERS)


def chunk_count(B: int, T: int, C: int, workers: int) -> int:
    """Return the largest number of chunks of B windows.

    Each worker gets equally many, and a chunk has about CHUNK_NUMBERS numbers of the stream or
    fewer.
    """
    rounds = math.ceil(B * T * C / CHUNK_NUMBERS / workers)
    return min(B, workers * rounds)


def windows_at_once(B: int, T: int, C: int, workers: int) -> int:
    """Return how many of B windows of T characters `workers` hold in memory at the same time."""
    return min(B, workers * -(-B // chunk_count(B, T, C, workers)))
