"""Several processes that train one model: equal gradients, equal weights, a GPU for each.

A rank is one of these processes. Each rank computes the gradient of its share of the batch.
DistributedDataParallel averages the gradients during the last backward pass of a step (Li et al.
2020, arXiv:2006.15704).
"""

import hashlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpt.distributed import Ranks
from gpt.errors import DeviceError, TrainingError


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
        raise DeviceError(f"device {device}: torchrun needs cpu or cuda; use cpu")
    if (count := torch.cuda.device_count()) < ranks.local_size:
        raise DeviceError(
            f"expected a GPU for each of the {ranks.local_size} ranks of this machine, got "
            f"{count}; use torchrun --nproc-per-node={count}, or use cpu"
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
