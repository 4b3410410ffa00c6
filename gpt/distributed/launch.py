"""Access to what torchrun provides: environment variables, a key-value store, and restarts.

torchrun keeps the store when it restarts its processes, the workers. torch is imported inside
functions, because most commands do not need it.
"""

import itertools
import os
from datetime import timedelta
from typing import Any

from gpt.errors import UsageError

STORE_TIMEOUT = timedelta(seconds=10)  # longest wait for an answer of torchrun's store

_trainings = 0  # number of trainings that this process has begun
_group_numbers = itertools.count()  # yields a number for each process group of this process


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

    If torchrun has restarted the workers, training number n of this process resumes the run of
    training number n before the restart. Calls are counted, so make one call for each training.
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


def new_store(timeout: timedelta) -> Any:
    """Return torchrun's store for a new process group, with a key prefix of its own."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(f"{_restart_prefix()}/{next(_group_numbers)}", _connect(timeout))


def _connect(timeout: timedelta = STORE_TIMEOUT) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, timeout=timeout, wait_for_workers=False)


def _restart_prefix() -> str:
    """Return a key prefix that changes whenever torchrun restarts the workers."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"gpt/{restart}/{os.environ['WORLD_SIZE']}"
