"""Workers: CPU threads that divide the windows of a batch."""

import math
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.device import set_threads_here
from gpt.distributed import SINGLE, Ranks
from gpt.model.transformer import GPT
from gpt.training.backward import Backward, divide

# How many numbers of the residual stream (B x T x C) a CPU thread processes at a time. They take
# 4 MB, and the MLP's activations take 16 MB. malloc returns blocks above 32 MB to the system, and
# clearing new blocks would take a sixth of a step (scripts/experiments.md).
CHUNK_NUMBERS = 2**20
# Largest number of workers (threads). Each needs memory for the gradients of all parameters.
MAX_WORKERS = 8

LossAndGradients = tuple[Tensor, tuple[Tensor, ...]]


class WorkerBackward(Backward):
    """Backward pass in which several workers (threads) each run the whole model on a few windows.

    This is faster than dividing each operation among all threads, which then wait for each other
    (`python scripts/bench workers` measures both). If there are more threads than MAX_WORKERS,
    each worker uses several of them.
    """

    def __init__(self, config: Config, model: GPT, device: torch.device, ranks: Ranks) -> None:
        super().__init__(config, model, device, ranks)
        self.threads = torch.get_num_threads()
        self.workers = worker_count(config, device, ranks)  # one if DDP is used
        self.pool = ThreadPoolExecutor(self.workers)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradients for `x` and `y`, (B, T) each, to `.grad`.

        Return this rank's part of the mean loss. The gradients are added in the order of the
        windows, whichever thread ends first.
        """
        chunks: list[tuple[Tensor, Tensor]] = []
        for x_part, y_part in divide(x, y, self.config.train.accumulation):
            B, T = x_part.shape
            count = chunk_count(B, T, self.config.model.C, self.workers)
            chunks += divide(x_part, y_part, count)
        if self.workers == 1:
            return self.accumulate(chunks)
        total = torch.zeros((), dtype=torch.float32)
        threads = max(1, self.threads // min(len(chunks), self.workers))
        futures: list[Future[LossAndGradients]] = []
        try:  # pop futures so that their tensors are freed, even on error
            for x, y in chunks:
                futures.append(self.pool.submit(self._gradients, x, y, threads))
                if len(futures) > self.workers:
                    total += self._add(*futures.pop(0).result())
            while futures:
                total += self._add(*futures.pop(0).result())
        except Exception:
            wait(futures)  # running futures hold memory until they end
            raise
        return total

    def _gradients(self, x: Tensor, y: Tensor, threads: int) -> LossAndGradients:
        set_threads_here(threads)
        loss = self.loss(x, y)
        gradients = torch.autograd.grad(self.scaled(loss), self.parameters)
        return loss.detach(), gradients

    def _add(self, loss: Tensor, gradients: tuple[Tensor, ...]) -> Tensor:
        for p, gradient in zip(self.parameters, gradients, strict=True):
            # contiguous, because AdamW's kernel does not check strides
            p.grad = gradient.contiguous() if p.grad is None else p.grad.add_(gradient)
        return loss


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
    """Return how many chunks to split `B` windows into: a multiple of `workers`, but at most `B`.

    The residual stream of a chunk, (windows, T, C), has at most about CHUNK_NUMBERS numbers.
    """
    rounds = math.ceil(B * T * C / CHUNK_NUMBERS / workers)
    return min(B, workers * rounds)


def windows_at_once(B: int, T: int, C: int, workers: int) -> int:
    """Return how many of `B` windows the workers process at the same time; see `chunk_count`."""
    return min(B, workers * math.ceil(B / chunk_count(B, T, C, workers)))
