"""What torchrun tells the processes that it starts, and what they leave in its store.

The store is torchrun's own, and outlives its workers. Knows no torch until it is asked for.
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

TIMEOUT = timedelta(seconds=10)  # for the store to answer
RENDEZVOUS_S = 300  # that a rank waits for the others before training begins
SILENT_S = 2  # of that wait, before a notice says what is waited for
POLL_S = 0.05
STOPPED = "stopped before training began; nothing is saved"

_trainings = 0  # that this process has begun
_rendezvous = 0  # that this process has taken part in
_has_met = False  # the other ranks


def is_launched() -> bool:
    """Whether torchrun, or another that sets its variables, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def is_main() -> bool:
    """Whether this process writes and talks: rank 0 does."""
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
    """Raises UsageError if torchrun started several processes for what one does."""
    if is_launched() and os.environ["WORLD_SIZE"] != "1":
        raise UsageError(f"{work} does not train on ranks; start it without torchrun")


def is_first_to_fail(message: str) -> bool:
    """Whether no other rank has failed since torchrun (re)started them: only that one tells why.

    Also true if torchrun cannot be asked. The message is left for its summary.
    """
    if not is_launched():
        return True
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        about = {"py_callstack": message, "timestamp": str(int(time.time()))}
        content = {"message": {"message": message, "extraInfo": about}}
        with suppress(OSError):
            Path(path).write_text(json.dumps(content), "utf-8")
    if not (_has_store() or _has_met) or _problem_of_store():
        return True
    try:
        return bool(_store().add(f"{_attempt()}/failed", 1) == 1)
    except RuntimeError:
        return True


def begin_training() -> dict[str, Any]:
    """Count a training of this process; what was remembered of it before torchrun restarted it.

    That is its `run`, and its `outcome` if it came to its end; of a new one, nothing.
    """
    global _trainings
    _trainings += 1
    if not _has_store() or not _store().check([_training()]):
        return {}
    remembered: dict[str, Any] = json.loads(bytes(_store().get(_training())))
    return remembered


def remember(**known: Any) -> None:
    """Let workers that torchrun restarts know this of the training that this process is at."""
    if _has_store() and is_main():
        _store().set(_training(), json.dumps(known))


def rendezvous(patience: timedelta, should_stop: Callable[[], bool]) -> Any:
    """Return the store in which the ranks find each other, once all of them are there.

    It holds nothing of earlier process groups. Without torchrun's own store, rank 0 has it. No
    call into torch waits here, as a signal would not end it.

    Args:
        patience: the time that the store waits for an answer, once all ranks are there.
        should_stop: asked again and again while a rank is missing.

    Raises:
        Interrupted: `should_stop` returned True.
        TrainingError: a rank was missing for `RENDEZVOUS_S` seconds, or the store fails.
    """
    global _rendezvous, _has_met
    _rendezvous += 1
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    began, is_host = time.monotonic(), rank == 0 and not _has_store()

    def wait_for(problem: Callable[[], str], notify: Callable[[str], object]) -> None:
        """Wait until there is no `problem`; notify once of one that lasts."""
        while missing := problem():
            waited_s = time.monotonic() - began
            if should_stop():
                raise Interrupted(STOPPED)
            if waited_s > RENDEZVOUS_S:
                raise TrainingError(
                    f"rank {rank} of {ranks} waited {RENDEZVOUS_S} s for {missing}; start every "
                    f"rank with the same MASTER_ADDR and MASTER_PORT, as torchrun does, or unset "
                    f"RANK to train in one process"
                )
            if waited_s > SILENT_S:
                notify(f"rank {rank} of {ranks} waits up to {RENDEZVOUS_S} s for {missing}")
                notify = str  # once is enough
            time.sleep(POLL_S)

    def absent() -> str:
        keys = [f"{i}" for i in range(ranks)]
        if store.check(keys):
            return ""
        missing = [key for key in keys if not store.check([key])]
        return f"rank {listed(missing, 9)}"

    def say(notice: str) -> None:
        """Write to stderr: other notices are those of rank 0, which is not there."""
        if sys.stderr:
            sys.stderr.write(f"{notice}\n")

    if not is_host:
        wait_for(lambda: (p := _problem_of_store()) and f"rank 0 at {address} ({p})", say)
    try:
        tcp_store = _store(is_host=is_host, should_stop=should_stop)
        tcp_store.set_timeout(patience)
        store = PrefixStore(f"{_attempt()}/{_rendezvous}", tcp_store)
        store.set(f"{rank}", "")
        wait_for(absent, log.info)
    except RuntimeError as error:
        reason, *_ = str(error).splitlines() or [""]
        what = "cannot listen" if is_host else "gets no answer from rank 0"
        raise TrainingError(
            f"rank {rank} of {ranks} {what} at {address} ({reason:.150}); set a MASTER_PORT that "
            f"no other program uses, the same for every rank"
        ) from None
    _has_met = True
    return store


def _has_store() -> bool:
    return is_launched() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _training() -> str:
    """A name for the training that this process is at: a restarted program repeats its calls."""
    return f"gpt/training/{_trainings}"


def _attempt() -> str:
    """A name for the workers that torchrun has (re)started."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"gpt/{restart}/{os.environ['WORLD_SIZE']}"


def _problem_of_store() -> str:
    """Return why nothing answers at the store's address; empty if something does."""
    try:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        socket.create_connection(address, timeout=1).close()
    except (OSError, ValueError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def _store(*, is_host: bool = False, should_stop: Callable[[], bool] = lambda: False) -> Any:
    """Connect to the store, in a thread: torch waits for ever where another program listens.

    Raises:
        Interrupted: `should_stop` returned True.
        RuntimeError: nothing answers, or not as a store does; a host cannot listen.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    connected = Future[Any]()

    def connect() -> None:
        try:
            store = TCPStore(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=is_host,
                timeout=TIMEOUT,
                wait_for_workers=False,
                multi_tenant=is_host,  # a second training of this process finds the first one's
            )
            connected.set_result(store)
        except Exception as error:
            connected.set_exception(error)

    Thread(target=connect, daemon=True).start()
    deadline = time.monotonic() + 2 * TIMEOUT.total_seconds()
    while not wait([connected], POLL_S).done:
        if should_stop():
            raise Interrupted(STOPPED)
        if time.monotonic() > deadline:
            raise RuntimeError("another program seems to listen there")
    return connected.result()
