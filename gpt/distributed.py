"""`Ranks`, the processes that train one model together, as torchrun starts them.

torchrun gives its processes (the workers) environment variables and a key-value store that survives
their restarts. torch is imported inside functions, because most commands do not need it.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from gpt.errors import ConfigError, TrainingError, UsageError

STORE_TIMEOUT = timedelta(seconds=10)  # longest wait for an answer of torchrun's store
TIMEOUT = timedelta(minutes=30)  # longest wait for another rank, which may prepare a large text
# Seconds to wait before the process may exit: Gloo's threads release tensors shortly after a
# collective. Before Python 3.14, a thread that releases a tensor while Python exits aborts the
# process (github.com/pytorch/pytorch/pull/179291).
RELEASE_S = 0.2

_trainings = 0  # number of trainings that this process has begun
_group_numbers = itertools.count()  # yields a number for each process group of this process

R = TypeVar("R")


@dataclass(frozen=True)
class Ranks:
    """Rank of this process, and number of processes that train one model together."""

    rank: int = 0  # from 0 to `size` - 1; only rank 0 writes files and prints
    size: int = 1
    local_rank: int = 0  # rank among the processes on this machine
    local_size: int = 1  # number of processes on this machine

    def broadcast(self, work: Callable[..., R], *arguments: Any) -> R:
        """Call `work(*arguments)` on rank 0 only; pickle the result; return it on all ranks."""
        if self.size == 1:
            return work(*arguments)
        import torch.distributed as dist

        box: list[Any] = [work(*arguments) if self.rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        result: R = box[0]
        return result

    def sum(self, numbers: Iterable[float]) -> list[float]:
        """Add up each of `numbers` over all ranks, in float64; return the sums."""
        if self.size == 1:
            return [*numbers]
        import torch
        import torch.distributed as dist

        sums = torch.tensor([*numbers], dtype=torch.float64)
        dist.all_reduce(sums)
        return [*map(float, sums)]

    def any(self, flag: bool) -> bool:
        """Return, on every rank, whether `flag` is true on at least one rank."""
        return self.sum([float(flag)])[0] > 0

    def wait(self) -> None:
        """Wait until every rank has called this method (a barrier)."""
        self.sum([0.0])

    def share(self, count: int) -> slice:
        """Return this rank's slice of `count` items; 3 ranks get 0:2, 2:4 and 4:7 of 7 items."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def check_batch(self, batch_size: int) -> None:
        """Raise ConfigError if `batch_size`, in windows, is smaller than the number of ranks."""
        if batch_size < self.size:
            raise ConfigError(
                f"train.batch_size: expected at least one window for each of the {self.size} "
                f"ranks, got {batch_size}; use a larger one, or fewer ranks"
            )


SINGLE = Ranks()  # the ranks of a training in a single process


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the processes that torchrun started; yield this process's `Ranks`.

    Yield `SINGLE` if there is only one process. Raise TrainingError if another rank did not start,
    has ended, or does not answer.
    """
    if not is_launched() or os.environ["WORLD_SIZE"] == "1":
        yield SINGLE
        return
    import torch
    import torch.distributed as dist

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    ranks = Ranks(*(int(os.environ[name]) for name in names))
    on_cuda = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        prefix = f"{_restart_prefix()}/{next(_group_numbers)}"  # no earlier group used this prefix
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
            timeout=TIMEOUT,
            rank=ranks.rank,
            world_size=ranks.size,
            store=dist.PrefixStore(prefix, _connect(TIMEOUT)),  # type: ignore[attr-defined]
        )
        yield ranks
        dist.destroy_process_group()
    except RuntimeError as error:
        first, *_ = str(error).splitlines() or [""]
        if not (isinstance(error, dist.DistError) or "gloo" in first.lower() or "NCCL" in first):
            raise
        raise TrainingError(
            f"another rank ended, or does not answer ({first:.150}), so this rank ends, too; the "
            f"last checkpoint is kept; resume the run with gpt train --resume, or start with "
            f"torchrun --max-restarts"
        ) from error
    finally:
        time.sleep(RELEASE_S)


def is_launched() -> bool:
    """Return whether torchrun started this process."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def is_main() -> bool:
    """Return whether this process is rank 0, the only rank that writes files and prints."""
    return not is_launched() or os.environ["RANK"] == "0"


def check_alone(work: str) -> None:
    """Raise UsageError if torchrun started several processes; `work` names the task."""
    if is_launched() and os.environ["WORLD_SIZE"] != "1":
        raise UsageError(f"{work} runs in a single process; start it without torchrun")


def is_first_to_fail() -> bool:
    """Record that this rank failed; return whether no other rank has failed before."""
    try:
        return not is_launched() or bool(_connect().add(f"{_restart_prefix()}/failed", 1) == 1)
    except RuntimeError:  # torchrun has ended
        return True


def begin_training() -> str | None:
    """Return the folder of the run that the next training must resume; None to start a new run.

    Call this once for each training, because calls are counted: if torchrun has restarted the
    workers, the nth call returns the run of the old process's nth training.
    """
    global _trainings
    _trainings += 1
    if not is_launched() or not (store := _connect()).check([f"gpt/training/{_trainings}"]):
        return None
    return bytes(store.get(f"gpt/training/{_trainings}")).decode()


def remember(run: str) -> None:
    """Store the run folder `run` of the current training, so that restarted workers resume it."""
    if is_launched() and is_main():
        _connect().set(f"gpt/training/{_trainings}", run)


def _connect(timeout: timedelta = STORE_TIMEOUT) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, timeout=timeout, wait_for_workers=False)


def _restart_prefix() -> str:
    """Return a key prefix that changes whenever torchrun restarts the workers."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"gpt/{restart}/{os.environ['WORLD_SIZE']}"
