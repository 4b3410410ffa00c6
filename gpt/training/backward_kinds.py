"""Backward passes in threads of a CPU and on several ranks; training steps as CUDA graphs.

A rank is one of the processes that train one model. Each rank computes the gradient of its share
of the batch. DistributedDataParallel averages the gradients during the last backward pass of a step
(Li et al. 2020, arXiv:2006.15704).
"""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpt.config.schema import Config
from gpt.device import replayed, set_threads_here
from gpt.distributed import SINGLE, Ranks
from gpt.errors import DeviceError, TrainingError
from gpt.model.transformer import GPT
from gpt.training.gradients import Backward, Parts

# How many numbers of the residual stream (B x T x C) a CPU thread processes at a time. They take
# 4 MB, and the MLP's activations take 16 MB. malloc returns blocks above 32 MB to the system, and
# clearing new blocks would take a sixth of a step (scripts/experiments.md).
CHUNK_NUMBERS = 2**20
# Largest number of workers (threads). Each needs memory for the gradients of all parameters.
MAX_WORKERS = 8

LossAndGradients = tuple[Tensor, tuple[Tensor, ...]]


def make_backward(config: Config, model: GPT, device: torch.device, ranks: Ranks) -> Backward:
    """Return the fastest Backward for `device`."""
    kind = WorkerBackward if device.type == "cpu" else Backward
    return kind(config, model, device, ranks)


class RecordedUpdate:
    """Calls `update`, which is `TrainStep.update`; on CUDA, it is replayed as a graph.

    A new graph is recorded when the shape of the batch changes. `masks` draws the dropout masks.
    """

    def __init__(
        self,
        update: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
        device: torch.device,
        masks: torch.Generator | None,
    ) -> None:
        self.update, self.device, self.masks = update, device, masks
        self.x, self.y, self.lr_factor = (torch.empty(0, device=device) for _ in range(3))

    def __call__(self, x: Tensor, y: Tensor, lr_factor: float) -> tuple[Tensor, Tensor]:
        """Update the weights by `x` and `y`, a batch on the CPU; return loss and gradient norm."""
        if self.x.shape != x.shape:
            self.x, self.y = (torch.empty_like(ids, device=self.device) for ids in (x, y))
            self.lr_factor = torch.empty((), dtype=torch.float32, device=self.device)
            self.replay = replayed(
                lambda: self.update(self.x, self.y, self.lr_factor), self.device, self.masks
            )
        self.x.copy_(x, non_blocking=True)
        self.y.copy_(y, non_blocking=True)
        self.lr_factor.fill_(lr_factor)
        loss, norm = self.replay()
        return loss.clone(), norm.clone()  # the next replay overwrites `loss` and `norm`


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

    def parts(self, x: Tensor, y: Tensor) -> Parts:
        """Divide `x` and `y`, (B, T) each, into parts for the workers; see `chunk_count`."""
        divided: list[tuple[Tensor, Tensor]] = []
        for x_part, y_part in super().parts(x, y):
            # `chunk` can return fewer than `count` parts: `chunk(3)` divides 4 windows into 2 and 2
            B, T = x_part.shape
            count = chunk_count(B, T, self.config.model.C, self.workers)
            divided += zip(x_part.chunk(count), y_part.chunk(count), strict=True)
        return divided

    def accumulate(self, parts: Parts) -> Tensor:
        """Add each part's gradients to `.grad`, in the order of `parts`; return the summed loss."""
        if self.workers == 1:
            return super().accumulate(parts)
        total = torch.zeros((), dtype=torch.float32)
        threads = max(1, self.threads // min(len(parts), self.workers))
        futures: list[Future[LossAndGradients]] = []
        try:  # pop futures so that their tensors are freed, even on error
            for x, y in parts:
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
        gradients = torch.autograd.grad(self.scale_for_backward(loss), self.parameters)
        return loss.detach(), gradients

    def _add(self, loss: Tensor, gradients: Iterable[Tensor]) -> Tensor:
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


def data_parallel(module: nn.Module, ranks: Ranks, rehearse: Callable[[Any], object]) -> Any:
    """Wrap `module` in DistributedDataParallel (DDP), which averages gradients over `ranks`.

    DDP changes the order in which it adds gradients after the first backward pass. `rehearse` runs
    passes of the wrapped module before that, so that the first step after a resume has the same
    gradients as in a run without interruption, to the last bit.
    """
    if ranks.size == 1:
        return module
    ranks.wait()  # compiling may have taken longer on one rank than on another
    with warnings.catch_warnings():  # broadcast_buffers is deprecated; torch 2.9 lacks its new name
        warnings.simplefilter("ignore", FutureWarning)
        wrapped = nn.parallel.DistributedDataParallel(module, broadcast_buffers=False)
    rehearse(wrapped)
    module.zero_grad(set_to_none=True)
    return wrapped


def select_own_device(device: torch.device, ranks: Ranks) -> torch.device:
    """Return `device` or, for one of several ranks on CUDA, a GPU that no other rank uses.

    Raise DeviceError if there are fewer GPUs than ranks, or if ranks cannot use `device` (MPS).
    """
    if ranks.size == 1 or device.type == "cpu":
        return device
    if device.type != "cuda":
        raise DeviceError(f"device {device}: torchrun needs cpu or cuda; use --device cpu")
    if (count := torch.cuda.device_count()) < ranks.local_size:
        raise DeviceError(
            f"expected a GPU for each of the {ranks.local_size} ranks of this machine, got "
            f"{count}; use torchrun --nproc-per-node={count}, or --device cpu"
        )
    torch.cuda.set_device(ranks.local_rank)
    return torch.device("cuda", ranks.local_rank)


def check_equal(module: nn.Module, step: int, ranks: Ranks) -> None:
    """Raise TrainingError unless all ranks have equal parameters, bit for bit, after `step`."""
    if ranks.size == 1:
        return
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.numpy(force=True).tobytes())
    digests = [""] * ranks.size
    dist.all_gather_object(digests, digest.hexdigest())
    if other := [i for i, each in enumerate(digests) if each != digests[0]]:
        raise TrainingError(
            f"step {step}: the weights of rank {other[0]} differ from those of rank 0; expected "
            f"equal weights on all ranks; use machines of one kind with the same packages, and "
            f"resume from the last checkpoint"
        )
