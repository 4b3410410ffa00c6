"""What torchrun tells the processes that it starts, and what they leave in its store.

The store is torchrun's own, and outlives its workers. Knows no torch until it is asked for.
"""

import json
import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from gpt.errors import UsageError

TIMEOUT = timedelta(seconds=10)  # for the store to answer

_trainings = 0  # that this process has begun


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


def _training() -> str:
    """A name for the training that this process is at: a restarted program repeats its calls."""
    return f"gpt/training/{_trainings}"


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
