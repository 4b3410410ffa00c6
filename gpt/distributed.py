"""Several processes that train one model: who they are, and what they tell each other.

torchrun starts them, each with its rank (`torchrun --nproc-per-node=2 -m gpt train ...`); they are
PyTorch's process group, which talks over Gloo, and between GPUs over NCCL. One process is rank 0 of
1, and every function here is then the identity.

Each rank computes the gradient of its windows of the batch, and DistributedDataParallel adds them
up during the last backward pass (Li et al. 2020, arXiv:2006.15704). Rank 0 alone writes and talks.

Knows no torch until ranks join.
"""

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gpt.errors import ConfigError, DeviceError, TrainingError
from gpt.torchrun import check_variables, is_launched, rendezvous

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

TIMEOUT = timedelta(seconds=30)  # that ranks wait for each other in a step
PATIENCE = timedelta(hours=1)  # where one rank works alone, or each for long
# Gloo's threads let go of the last tensors only after a collective. Before Python 3.14 a thread
# that does so while Python ends aborts the process (github.com/pytorch/pytorch/pull/179291).
LETTING_GO_S = 0.2

R = TypeVar("R")

_in_step: Any = None  # the process group that waits for TIMEOUT; the default one has PATIENCE
_alone = False  # this rank works as if it were the only one


def world_size() -> int:
    """The number of ranks that joined; 1 if none did."""
    if _in_step is None or _alone:
        return 1
    return int(os.environ["WORLD_SIZE"])


def rank() -> int:
    """Which of them this process is, from 0 on."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_world_size() -> int:
    """The number of ranks on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if world_size() > 1 else 1


def local_rank() -> int:
    """Which of the ranks on this machine this process is, from 0 on."""
    return int(os.environ.get("LOCAL_RANK", "0")) if world_size() > 1 else 0


@contextmanager
def joined(should_stop: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Join the ranks that torchrun started to one process group, unless they are joined already.

    Raises:
        UsageError: the variables that torchrun sets contradict each other.
        Interrupted: `should_stop` returned True before all ranks were there.
        TrainingError: another rank does not come, ends, or does not answer.
    """
    global _in_step
    if is_launched():
        check_variables()
    if not is_launched() or os.environ["WORLD_SIZE"] == "1" or _in_step is not None:
        yield
        return
    import torch
    import torch.distributed as dist

    on_cuda = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
            timeout=PATIENCE,
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            store=rendezvous(PATIENCE, should_stop),
        )
        _in_step = dist.new_group(timeout=TIMEOUT)
        yield
        dist.destroy_process_group()
    except RuntimeError as error:
        if (reason := _reason(error)) is None:
            raise
        raise TrainingError(
            f"another rank of this job ended, or did not answer for {TIMEOUT.seconds} s "
            f"({reason:.150}), so this one ends too; the run keeps its last checkpoint: resume it "
            f"with gpt train --resume, or start with torchrun --max-restarts"
        ) from error
    finally:
        _in_step = None
        time.sleep(LETTING_GO_S)


def _reason(error: RuntimeError) -> str | None:
    """The first line of an error of the process group; None of any other."""
    import torch.distributed as dist

    first, *_ = str(error).splitlines() or [""]
    ours = isinstance(error, dist.DistError) or "gloo" in first.lower() or "NCCL" in first
    return (first.rpartition("] ")[2] or first).partition(". ")[0] if ours else None


def from_main(work: Callable[..., R], *arguments: Any) -> R:
    """What the work gives on rank 0, which does it as if alone; the others wait for it and get it.

    It is sent as PyTorch sends objects, pickled: between the processes of this job only.
    """
    global _alone
    if world_size() == 1:
        return work(*arguments)
    import torch.distributed as dist

    box: list[Any] = [None]
    if rank() == 0:
        _alone = True
        try:
            box = [work(*arguments)]
        finally:
            _alone = False
    dist.broadcast_object_list(box, src=0)
    result: R = box[0]
    return result


def on_main(context: AbstractContextManager[R], otherwise: R) -> AbstractContextManager[R]:
    """The context on rank 0; elsewhere one that gives `otherwise`."""
    return context if rank() == 0 else nullcontext(otherwise)


@contextmanager
def first_on_each_machine() -> Iterator[None]:
    """A context that one rank of each machine enters and leaves before the others enter it."""
    if local_rank() > 0:
        wait_for_all()
    yield
    if local_rank() == 0:
        wait_for_all()


def wait_for_all() -> None:
    """Return once every rank has called this, however long that takes."""
    total([0.0], patient=True)


def total(numbers: Iterable[float], *, patient: bool = False) -> list[float]:
    """The sum of each of these numbers over all ranks, in float64.

    `patient`: they come when each has worked for long.
    """
    if world_size() == 1:
        return [*numbers]
    import torch
    import torch.distributed as dist

    sums = torch.tensor([*numbers], dtype=torch.float64)
    dist.all_reduce(sums, group=None if patient else _in_step)
    result: list[float] = sums.tolist()
    return result


def any_rank(flag: bool) -> bool:
    """Whether that is true on any rank: what depends on a clock or a signal is decided so."""
    return total([float(flag)])[0] > 0


def add_up(tensor: "Tensor") -> "Tensor":
    """The sum of a tensor over all ranks, in place, wherever it is."""
    if world_size() > 1:
        import torch.distributed as dist

        dist.all_reduce(tensor, group=_in_step)
    return tensor


def all_gather(tensor: "Tensor") -> "list[Tensor]":
    """This tensor of each rank, (N,), in their order; all are as long."""
    import torch.distributed as dist

    gathered = [tensor.new_empty(len(tensor)) for _ in range(world_size())]
    dist.all_gather(gathered, tensor, group=_in_step)
    return gathered


def mesh(device: "torch.device") -> Any:
    """The ranks in a row, as `fully_shard` takes them."""
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh.from_group(_in_step, device.type)


def sharing() -> Callable[[int], slice]:
    """Gives which of so many things, in their order, are this rank's: as evenly as they divide."""
    return partial(_share, rank(), world_size())


def _share(rank: int, ranks: int, count: int) -> slice:
    return slice(count * rank // ranks, count * (rank + 1) // ranks)


def check_batch(batch_size: int) -> None:
    """Raises ConfigError if a batch has fewer windows than there are ranks."""
    if batch_size < world_size():
        raise ConfigError(
            f"train.batch_size: expected a window for each of the {world_size()} ranks at least, "
            f"got {batch_size}; use a larger one, or fewer ranks"
        )


def parallel(module: "nn.Module", rehearse: Callable[[Any], object]) -> Any:
    """The module, so that backward leaves the mean of all ranks' gradients.

    A module that FSDP has sharded does so by itself.

    DDP lays its buckets out in the order of a first backward pass, which `rehearse` is to make: so
    each step, also the first after a resume, adds in the same order.
    """
    if world_size() == 1 or hasattr(module, "reshard"):
        return module
    from torch.nn.parallel import DistributedDataParallel

    wait_for_all()  # compiling may have taken one longer than another
    with warnings.catch_warnings():  # the option's new name is not known to torch 2.9
        warnings.simplefilter("ignore", FutureWarning)
        wrapped = DistributedDataParallel(module, process_group=_in_step, broadcast_buffers=False)
    rehearse(wrapped)
    module.zero_grad(set_to_none=True)
    return wrapped


def unsynchronised(module: Any) -> AbstractContextManager[None]:
    """The context of all micro-batches but the last: their gradients stay on this rank."""
    if not hasattr(module, "no_sync"):
        return nullcontext()
    context: AbstractContextManager[None] = module.no_sync()
    return context


def own_device(device: "torch.device") -> "torch.device":
    """The device of this rank: on CUDA, a GPU of its own.

    Raises DeviceError if this machine has too few, or the device cannot be shared.
    """
    if world_size() == 1 or device.type == "cpu":
        return device
    import torch

    if device.type != "cuda":
        raise DeviceError(f"device {device}: ranks compute on cpu or cuda; use --device cpu")
    if torch.cuda.device_count() < local_world_size():
        raise DeviceError(
            f"expected a GPU for each of the {local_world_size()} ranks of this machine, got "
            f"{torch.cuda.device_count()}; use torchrun --nproc-per-node="
            f"{torch.cuda.device_count()}, or --device cpu"
        )
    torch.cuda.set_device(local_rank())
    return torch.device("cuda", local_rank())


def own_threads(threads: int | str) -> int | str:
    """`auto`: the cores of this machine, divided among its ranks."""
    if threads != "auto" or world_size() == 1:
        return threads
    import psutil

    allowed = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    cores = min(len(allowed), psutil.cpu_count(logical=False) or 1)
    return max(1, cores // local_world_size())


def check_equal(module: "nn.Module", step: int) -> None:
    """Raises TrainingError if a parameter differs between ranks in any bit."""
    if world_size() == 1:
        return
    import torch.distributed as dist

    digest = hashlib.sha256()
    for parameter in module.parameters():
        if hasattr(parameter, "full_tensor"):  # FSDP's shards are each on one rank alone
            return
        digest.update(parameter.numpy(force=True).tobytes())
    digests = [""] * world_size()
    dist.all_gather_object(digests, digest.hexdigest())
    if other := [i for i, each in enumerate(digests) if each != digests[0]]:
        raise TrainingError(
            f"step {step}: the weights of rank {other[0]} are no longer those of rank 0; expected "
            f"all ranks to compute alike: use machines of one kind with the same packages, and "
            f"resume from the last checkpoint"
        )
