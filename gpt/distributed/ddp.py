"""Data parallelism: ranks (the processes that train one model) average their gradients.

Each rank computes the gradient of its own windows of the batch. DistributedDataParallel averages
the gradients during the last backward pass of a step (Li et al. 2020, arXiv:2006.15704).
"""

import hashlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpt.distributed.ranks import Ranks
from gpt.errors import DeviceError, TrainingError


def data_parallel(module: nn.Module, ranks: Ranks, rehearse: Callable[[Any], object]) -> Any:
    """Wrap `module` in DistributedDataParallel (DDP), which averages gradients over `ranks`.

    After its first backward pass, DDP changes the order in which it adds gradients. Therefore,
    `rehearse` runs forward and backward passes of the wrapped module. Without them, the gradients
    of the first step after a resume would differ in the last bits.
    """
    if ranks.size == 1:
        return module
    ranks.wait()  # one rank may have compiled its model for longer than another
    with warnings.catch_warnings():  # torch 2.9 lacks the new name of broadcast_buffers
        warnings.simplefilter("ignore", FutureWarning)
        wrapped = nn.parallel.DistributedDataParallel(module, broadcast_buffers=False)
    rehearse(wrapped)
    module.zero_grad(set_to_none=True)
    return wrapped


def select_own_device(device: torch.device, ranks: Ranks) -> torch.device:
    """Return the device of this rank: on CUDA, a GPU that no other rank uses.

    Raise DeviceError if there are fewer GPUs than ranks, or ranks cannot use this kind of device.
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
