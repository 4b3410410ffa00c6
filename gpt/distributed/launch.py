"""What torchrun sets up for the processes that it starts: variables, a store, and restarts.

The store belongs to torchrun and outlives its workers. torch is imported only when it is used.
"""

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

from gpt.errors import Interrupted, TrainingError, UsageError, listed

log = logging.getLogger(__name__)

STORE_TIMEOUT = timedelta(seconds=10)  # longest wait for an answer of the store
RENDEZVOUS_S = 300  # longest wait of a rank for the others, before training begins
RENDEZVOUS_NOTICE_S = 2  # seconds of that wait before a notice
POLL_S = 0.05  # seconds between two looks at the store
STOPPED = "stopped before training began; nothing is saved"

_trainings = 0  # number of trainings that this process has begun
_rendezvous = 0  # number of rendezvous that this process has taken part in
_has_met_ranks = False


def is_launched() -> bool:
    """Return whether torchrun, or another program that sets its variables, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def is_main() -> bool:
    """Return whether this process is rank 0, which alone writes and prints."""
    return not is_launched() or os.environ["RANK"] == "0"


def check_variables() -> None:
    """Raise UsageError if the variables that torchrun sets contradict each other."""
    advice = "start gpt with torchrun, or unset RANK to train in one process"
    lowest = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    for name, least in lowest.items():
        value = os.environ.get(name, "1")
        if not (value.isascii() and value.isdecimal() and least <= int(value) <= 65535):
            raise UsageError(
                f"the environment variable {name} is {value:.50}, where torchrun sets a whole "
                f"number from {least} to 65535; {advice}"
            )
    rank, ranks = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if int(rank) >= int(ranks):
        raise UsageError(
            f"the environment variable RANK is {rank}, where WORLD_SIZE={ranks} needs one from 0 "
            f"to {int(ranks) - 1}; {advice}"
        )


def check_alone(work: str) -> None:
    """Raise UsageError if torchrun started several processes for `work`, which needs one."""
    if is_launched() and os.environ["WORLD_SIZE"] != "1":
        raise UsageError(f"{work} does not train on ranks; start it without torchrun")


def is_first_to_fail(message: str) -> bool:
    """Return whether to print an error: no other rank has failed since torchrun (re)started them.

    The message is also written for torchrun's summary. If the store does not answer, return True.
    """
    if not is_launched():
        return True
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = {"py_callstack": message, "timestamp": str(int(time.time()))}
        content = {"message": {"message": message, "extraInfo": extra}}
        with suppress(OSError):
            Path(path).write_text(json.dumps(content), "utf-8")
    if not (_has_store() or _has_met_ranks) or _store_problem():
        return True
    try:
        return bool(_connect().add(f"{_attempt()}/failed", 1) == 1)
    except RuntimeError:
        return True


def begin_training() -> dict[str, Any]:
    """Count a training, and return what an earlier attempt of it saved with `remember`.

    After a restart by torchrun, the result has the `run` that the training began, and its `outcome`
    if it ended. Otherwise it is empty.
    """
    global _trainings
    _trainings += 1
    if not _has_store() or not (store := _connect()).check([_training_key()]):
        return {}
    remembered: dict[str, Any] = json.loads(bytes(store.get(_training_key())))
    return remembered


def remember(**values: Any) -> None:
    """Save values of the current training for workers that torchrun restarts."""
    if _has_store() and is_main():
        _connect().set(_training_key(), json.dumps(values))


def rendezvous(timeout: timedelta, should_stop: Callable[[], bool]) -> Any:
    """Wait for all ranks, and return the store through which they found each other.

    The store contains nothing of earlier process groups. Without torchrun's own store, rank 0 hosts
    one. No call into torch waits here, because signals would not end it.

    Args:
        timeout: the longest wait for an answer of the returned store.
        should_stop: called again and again while a rank is missing.

    Raises:
        Interrupted: `should_stop` returned True.
        TrainingError: a rank was missing for `RENDEZVOUS_S` seconds, or the store fails.
    """
    global _rendezvous, _has_met_ranks
    _rendezvous += 1
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    is_host = rank == 0 and not _has_store()

    def missing_store() -> str:
        problem = "" if is_host else _store_problem()
        return problem and f"rank 0 at {address} ({problem})"

    def missing_ranks() -> str:
        missing = [key for key in map(str, range(size)) if not store.check([key])]
        return f"rank {listed(missing, 9)}" if missing else ""

    # until the store answers, rank 0 is missing, which alone shows what is logged
    _wait_while(missing_store, should_stop, _write_to_stderr)
    try:
        tcp_store = _connect(is_host=is_host, should_stop=should_stop)
        tcp_store.set_timeout(timeout)
        store = PrefixStore(f"{_attempt()}/{_rendezvous}", tcp_store)
        store.set(f"{rank}", "")
        _wait_while(missing_ranks, should_stop, log.info)
    except RuntimeError as error:
        reason, *_ = str(error).splitlines() or [""]
        problem = "cannot listen" if is_host else "gets no answer from rank 0"
        raise TrainingError(
            f"rank {rank} of {size} {problem} at {address} ({reason:.150}); set a MASTER_PORT that "
            f"no other program uses, the same for every rank"
        ) from None
    _has_met_ranks = True
    return store


def _wait_while(
    missing: Callable[[], str], should_stop: Callable[[], bool], notify: Callable[[str], object]
) -> None:
    """Wait until `missing` returns an empty string; call `notify` once if that takes long."""
    rank = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
    began, notified = time.monotonic(), False
    while what := missing():
        waited_s = time.monotonic() - began
        if should_stop():
            raise Interrupted(STOPPED)
        if waited_s > RENDEZVOUS_S:
            raise TrainingError(
                f"{rank} waited {RENDEZVOUS_S} s for {what}; start every rank with the same "
                f"MASTER_ADDR and MASTER_PORT, as torchrun does, or unset RANK to train in one "
                f"process"
            )
        if waited_s > RENDEZVOUS_NOTICE_S and not notified:
            notify(f"{rank} waits up to {RENDEZVOUS_S} s for {what}")
            notified = True
        time.sleep(POLL_S)


def _write_to_stderr(notice: str) -> None:
    if sys.stderr:
        sys.stderr.write(f"{notice}\n")


def _has_store() -> bool:
    return is_launched() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _training_key() -> str:
    """Return the key of the current training, the same after a restart of the program."""
    return f"gpt/training/{_trainings}"


def _attempt() -> str:
    """Return a prefix for keys of the workers that torchrun has (re)started."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"gpt/{restart}/{os.environ['WORLD_SIZE']}"


def _store_problem() -> str:
    """Return why nothing answers at the store's address; empty if something does."""
    try:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        socket.create_connection(address, timeout=1).close()
    except (OSError, ValueError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def _connect(*, is_host: bool = False, should_stop: Callable[[], bool] = lambda: False) -> Any:
    """Connect to the store, in a thread, because torch waits forever if another program listens.

    Raises:
        Interrupted: `should_stop` returned True.
        RuntimeError: there is no store at the address, or a host cannot listen.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    connected = Future[Any]()

    def connect() -> None:
        try:
            store = TCPStore(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=is_host,
                timeout=STORE_TIMEOUT,
                wait_for_workers=False,
                multi_tenant=is_host,  # a second training of this process uses the first one's
            )
            connected.set_result(store)
        except Exception as error:
            connected.set_exception(error)

    Thread(target=connect, daemon=True).start()
    deadline = time.monotonic() + 2 * STORE_TIMEOUT.total_seconds()
    while not wait([connected], POLL_S).done:
        if should_stop():
            raise Interrupted(STOPPED)
        if time.monotonic() > deadline:
            raise RuntimeError("another program seems to listen there")
    return connected.result()
