"""Status lines: what a command does at the moment, where that takes longer than a moment."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("gpt.status")

DELAY_S = 0.5  # seconds before a phase is logged; shorter ones are not


@contextmanager
def phase(doing: str) -> Iterator[None]:
    """Log `doing` if the block takes longer than DELAY_S, and how long it took at its end.

    The second record has the attribute `ended`. The command line shows the first one as a status
    line (see `gpt.cli.main`); in Python, both are records of the logger `gpt.status`, which shows
    nothing by default. `doing` is a phrase such as "measuring the training speed".
    """
    began, ended, logged = time.perf_counter(), threading.Event(), threading.Event()

    def wait() -> None:
        if not ended.wait(DELAY_S):
            logged.set()
            log.info("%s ...", doing)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if logged.is_set():
            log.info("%s: %.1f s", doing, time.perf_counter() - began, extra={"ended": True})
