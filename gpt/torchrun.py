"""What torchrun tells the processes that it starts, and what they leave in its store.

The store is torchrun's own, and outlives its workers. Knows no torch until it is asked for.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from gpt.errors import UsageError

TIMEOUT = timedelta(seconds=10)  # for the store to answer
RUN = "gpt/run"  # the folder of this job's run


def is_launched() -> bool:
    """Whether torchrun, or another that sets its variables, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def is_main() -> bool:
    """Whether this process writes and talks: rank 0 does."""
    return not is_launched() or os.environ["RANK"] == "0"


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
    try:
        return bool(_store().add(f"{_attempt()}/failed", 1) == 1)
    except RuntimeError:
        return True


@contextmanager
def remembering(run: str) -> Iterator[None]:
    """Unless this context comes to its end, workers that torchrun restarts find this run."""
    remembers = _has_store() and is_main()
    if remembers:
        _store().set(RUN, run)
    yield
    if remembers:
        _store().delete_key(RUN)


def remembered_run() -> str | None:
    """The folder of this job's run, if torchrun restarted its workers amid it."""
    if not _has_store() or not _store().check([RUN]):
        return None
    return bytes(_store().get(RUN)).decode()


def group_store(patience: timedelta) -> Any:
    """Where the processes of a group find each other, and nothing of workers that were lost.

    None if there is no such store: rank 0 has it then, as PyTorch does by default.
    """
    if not _has_store():
        return None
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(_attempt(), _store(patience))


def _has_store() -> bool:
    return is_launched() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _attempt() -> str:
    """A name for the workers that torchrun has (re)started."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"gpt/{restart}/{os.environ['WORLD_SIZE']}"


def _store(timeout: timedelta = TIMEOUT) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timeout,
        wait_for_workers=False,
    )
