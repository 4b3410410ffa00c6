"""Compute the loss of a batch and its gradients; on a CPU, in several threads."""

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

# Numbers of the residual stream (B x T x C) that one CPU thread processes at a time. The MLP's
# activations are four times larger: 16 MB. malloc returns blocks above 32 MB to the system, and
# clearing new ones takes a sixth of a step (scripts/experiments.md).
CHUNK_NUMBERS = 2**20
# Largest number of workers (threads). Each one needs memory for a gradient of every parameter.
MAX_WORKERS = 8

LossAndGradients = tuple[Tensor, tuple[Tensor, ...]]


class Backward:
    """Computes the loss of a micro-batch and adds its gradients to the parameters' `.grad`.

    On a CPU, several workers (threads) each run the whole model on a chunk of a few windows. This
    is faster than dividing each operation among all threads, which then wait for each other
    (`python scripts/bench.py workers` measures both). If there are more threads than MAX_WORKERS,
    each worker uses several of them.
    """

    def __init__(
        self,
        config: Config,
        model: GPT,
        device: torch.device,
        ranks: Ranks = SINGLE,
    ) -> None:
        self.forward: Any = model  # possibly compiled or wrapped by DDP; returns the logits
        self.model, self.device, self.C = model, device, config.model.C
        self.parameters = [*model.parameters()]
        self.fused = fuses_head(model.head.out_features, ranks)
        self.precision = select_precision(config.train.precision, device)
        self.characters = config.train.batch_size * config.model.T  # in a batch
        self.threads = torch.get_num_threads()
        self.workers = worker_count(config, device, ranks)  # one if DDP is used
        self.pool = ThreadPoolExecutor(self.workers)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the summed loss on `x`, `y`, (B, T), divided by the number of ids in the batch."""
        with autocast(self.device, self.precision):
            # (B, T, C) or (B, T, V)
            out = self.forward.hidden(x) if self.fused else self.forward(x)
        if not self.fused:
            return cross_entropy(out, y, reduction="sum") / self.characters
        hidden, weight = out.flatten(0, 1), self.model.head.weight  # (B T, C), (V, C)
        summed = linear_cross_entropy(hidden, weight, y.flatten(), self.precision)
        return summed / self.characters

    def __call__(self, x: Tensor, y: Tensor, scale: Tensor, *, last: bool = True) -> Tensor:
        """Add the gradients of the loss on `x` and `y`, times `scale`, to `.grad`; return the loss.

        Args:
            x: the input ids of a micro-batch, (B, T).
            y: the target ids, (B, T).
            scale: factor of the gradients, ().
            last: whether this is the step's last micro-batch. DDP averages gradients after it.
        """
        B, T = x.shape
        count = chunk_count(B, T, self.C, self.workers) if self.device.type == "cpu" else 1
        # there can be fewer than `count` chunks: `chunk(3)` divides 4 windows into 2 and 2
        chunks = [*zip(x.chunk(count), y.chunk(count), strict=True)]
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
            wait(futures)  # running ones hold memory, too
            raise
        return total

    def _compute(self, x: Tensor, y: Tensor, scale: Tensor, threads: int) -> LossAndGradients:
        set_threads_here(threads)
        loss = self.loss(x, y)
        return loss.detach(), torch.autograd.grad(scale * loss, self.parameters)

    def _add(self, loss: Tensor, gradients: Iterable[Tensor]) -> Tensor:
        for p, gradient in zip(self.parameters, gradients, strict=True):
            # contiguous, because AdamW's kernel does not check strides
            p.grad = gradient.contiguous() if p.grad is None else p.grad.add_(gradient)
        return loss


def fuses_head(V: int, ranks: Ranks = SINGLE) -> bool:
    """Return whether to compute the head and the loss of `V` ids by `linear_cross_entropy`.

    This is impossible with DDP, which wraps the whole forward pass.
    """
    return V >= LARGE_VOCABULARY and ranks.size == 1


def supports_threads(config: Config, device: torch.device, ranks: Ranks = SINGLE) -> bool:
    """Return whether several CPU threads can run forward and backward passes at the same time.

    Dropout prevents this, because its masks are drawn from one generator. torch.compile does not
    support several threads. DDP handles the gradients of one thread only.
    """
    one_only = config.model.dropout > 0 or config.train.compile == "on"
    return device.type == "cpu" and ranks.size == 1 and not one_only


def threads_each(config: Config, device: torch.device, ranks: Ranks = SINGLE) -> int:
    """Return the number of CPU threads that each member of an ensemble computes with."""
    at_once = config.model.ensemble if supports_threads(config, device, ranks) else 1
    return max(1, torch.get_num_threads() // at_once)


def worker_count(config: Config, device: torch.device, ranks: Ranks = SINGLE) -> int:
    """Return how many workers compute the gradients of one model or ensemble member."""
    if not supports_threads(config, device, ranks):
        return 1
    return min(threads_each(config, device, ranks), MAX_WORKERS)


def chunk_count(B: int, T: int, C: int, workers: int) -> int:
    """Return the number of chunks to split `B` windows into: a multiple of `workers`, at most `B`.

    The residual stream of a chunk, (windows, T, C), has at most about CHUNK_NUMBERS numbers.
    """
    rounds = math.ceil(B * T * C / CHUNK_NUMBERS / workers)
    return min(B, workers * rounds)


def windows_at_once(B: int, T: int, C: int, workers: int) -> int:
    """Return how many of `B` windows the workers process at the same time; see `chunk_count`."""
    return min(B, workers * -(-B // chunk_count(B, T, C, workers)))
