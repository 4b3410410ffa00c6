"""Status lines, which say what a command does if that takes longer than a moment."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("gpt.status")

DELAY_S = 0.5  # seconds before a phase is logged; shorter phases are not logged


@contextmanager
def phase(doing: str) -> Iterator[None]:
    """Log `doing`, such as "measuring the training speed", if the block takes longer than DELAY_S.

    When the block ends, a second record with the attribute `ended` gives the seconds. The command
    line shows the first record as a status line. In Python the logger `gpt.status` is silent by
    default.
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
