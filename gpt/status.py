"""Status lines: messages about what a command is doing, shown if it takes more than 0.5 s."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("gpt.status")

DELAY_S = 0.5  # seconds before a phase is logged; shorter phases are not logged


@contextmanager
def phase(doing: str) -> Iterator[None]:
    """Log the start and the end of a `with` block that takes longer than DELAY_S.

    After DELAY_S, log `doing`, such as "measuring the training speed". At the end of the block, log
    its duration in seconds; this log record has the attribute `ended`. Programs that import gpt see
    both records only if they enable the logger `gpt.status`.
    """
    began, is_logged = time.perf_counter(), threading.Event()

    def start() -> None:
        is_logged.set()
        log.info("%s ...", doing)

    timer = threading.Timer(DELAY_S, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if is_logged.is_set():
            log.info("%s: %.1f s", doing, time.perf_counter() - began, extra={"ended": True})
