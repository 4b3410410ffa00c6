"""What torchrun sets up for the processes that it starts: variables, a store, and restarts.

The store belongs to torchrun and outlives its workers. torch is imported only when it is used.
"""

import itertools
import os
from datetime import timedelta
from typing import Any

from gpt.errors import UsageError

STORE_TIMEOUT = timedelta(seconds=10)  # longest wait for an answer of torchrun's store

_trainings = 0  # number of trainings that this process has begun
_group_numbers = itertools.count()  # numbers of the process groups that this process joins


def is_launched() -> bool:
    """Return whether torchrun started this process."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def is_main() -> bool:
    """Return whether this process is rank 0, which alone writes and prints."""
    return not is_launched() or os.environ["RANK"] == "0"


def check_alone(work: str) -> None:
    """Raise UsageError if torchrun started several processes for `work`, which needs one."""
    if is_launched() and os.environ["WORLD_SIZE"] != "1":
        raise UsageError(f"{work} does not train on ranks; start it without torchrun")


def is_first_to_fail() -> bool:
    """Return whether no other rank has failed since torchrun (re)started them."""
    try:
        return not is_launched() or bool(_connect().add(f"{_attempt()}/failed", 1) == 1)
    except RuntimeError:  # torchrun has ended
        return True


def begin_training() -> str | None:
    """Count a training; after a restart by torchrun, return the run that it began."""
    global _trainings
    _trainings += 1
    if not is_launched() or not (store := _connect()).check([f"gpt/training/{_trainings}"]):
        return None
    return bytes(store.get(f"gpt/training/{_trainings}")).decode()


def remember(run: str) -> None:
    """Save the run of the current training for workers that torchrun restarts."""
    if is_launched() and is_main():
        _connect().set(f"gpt/training/{_trainings}", run)


def new_store(timeout: timedelta) -> Any:
    """Return a part of torchrun's store that contains nothing of earlier process groups."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(f"{_attempt()}/{next(_group_numbers)}", _connect(timeout))


def _connect(timeout: timedelta = STORE_TIMEOUT) -> Any:
    """Connect to torchrun's store; `timeout` is the longest wait for an answer."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, timeout=timeout, wait_for_workers=False)


def _attempt() -> str:
    """Return a prefix for keys of the workers that torchrun has (re)started."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"gpt/{restart}/{os.environ['WORLD_SIZE']}"
