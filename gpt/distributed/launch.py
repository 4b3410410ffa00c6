"""What torchrun sets up for the processes that it starts: variables, a store, and restarts.

The store belongs to torchrun and outlives its workers. torch is imported only when it is used.
"""

import itertools
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from gpt.errors import Interrupted, TrainingError, UsageError
from gpt.status import phase

STORE_TIMEOUT = timedelta(seconds=10)  # longest wait for an answer of torchrun's store
RENDEZVOUS_S = 300  # longest wait of a rank for the others, before training begins
POLL_S = 0.05  # seconds between two looks at the store

_trainings = 0  # number of trainings that this process has begun
_rendezvous = itertools.count()  # numbers of the rendezvous that this process takes part in


def is_launched() -> bool:
    """Return whether torchrun, or another program that sets its variables, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


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
        return not _has_store() or bool(_connect().add(f"{_attempt()}/failed", 1) == 1)
    except RuntimeError:  # torchrun has ended
        return True


def begin_training() -> str | None:
    """Count a training; after a restart by torchrun, return the run that it began."""
    global _trainings
    _trainings += 1
    if not _has_store() or not (store := _connect()).check([f"gpt/training/{_trainings}"]):
        return None
    return bytes(store.get(f"gpt/training/{_trainings}")).decode()


def remember(run: str) -> None:
    """Save the run of the current training for workers that torchrun restarts."""
    if _has_store() and is_main():
        _connect().set(f"gpt/training/{_trainings}", run)


def rendezvous(timeout: timedelta, should_stop: Callable[[], bool]) -> Any:
    """Wait for all ranks, and return the store through which they found each other.

    The store contains nothing of earlier process groups. Without torchrun's own store, rank 0 hosts
    one. Signals do not end torch's calls, so this function only makes calls that return at once.

    Args:
        timeout: the longest wait for an answer of the returned store.
        should_stop: called again and again while a rank is missing.

    Raises:
        Interrupted: `should_stop` returned True.
        TrainingError: a rank was missing for `RENDEZVOUS_S` seconds, or the store fails.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_host = rank == 0 and not _has_store()
    with phase("waiting for the other ranks"):
        if not is_host:
            _wait_until(partial(_answers, host, port), f"rank 0 at {host}:{port}", should_stop)
        try:
            tcp_store = TCPStore(
                host,
                port,
                is_master=is_host,
                timeout=timeout,
                wait_for_workers=False,
                multi_tenant=is_host,  # a second training of this process uses the first one's
            )
        except RuntimeError as error:
            raise TrainingError(
                f"rank {rank} of {size} cannot use {host}:{port} to find the others "
                f"({error!s:.150}); set a MASTER_PORT that no other program uses, the same for "
                f"every rank"
            ) from None
        store = PrefixStore(f"{_attempt()}/{next(_rendezvous)}", tcp_store)
        store.set(f"{rank}", "")
        for other in range(size):
            _wait_until(partial(store.check, [f"{other}"]), f"rank {other}", should_stop)
    return store


def _wait_until(
    is_there: Callable[[], bool], missing: str, should_stop: Callable[[], bool]
) -> None:
    """Wait until `is_there()`; raise an error if it takes too long or a stop is requested."""
    began = time.monotonic()
    while not is_there():
        if should_stop():
            raise Interrupted("stopped before training began; nothing is saved")
        if time.monotonic() - began > RENDEZVOUS_S:
            raise TrainingError(
                f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} waited "
                f"{RENDEZVOUS_S} s for {missing}; start every rank with the same MASTER_ADDR "
                f"and MASTER_PORT, as torchrun does, or unset RANK to train in one process"
            )
        time.sleep(POLL_S)


def _answers(host: str, port: int) -> bool:
    """Return whether a program listens at the address."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _has_store() -> bool:
    """Return whether torchrun, not rank 0, hosts the store."""
    return is_launched() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _connect() -> Any:
    """Connect to torchrun's store."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, timeout=STORE_TIMEOUT, wait_for_workers=False)


def _attempt() -> str:
    """Return a prefix for keys of the workers that torchrun has (re)started."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"gpt/{restart}/{os.environ['WORLD_SIZE']}"
