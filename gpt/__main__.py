"""`python -m gpt`, and `gpt`."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C raises KeyboardInterrupt, but not amid an import: some, in C++, would abort."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            with suppress(OSError):
                os.write(2, b"\ngpt: stopped at once\n")
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody ignores it
    signal.signal(signal.SIGINT, _interrupt)


def main() -> None:
    """Run the command line.

    Ctrl-C ends it without a traceback; and whenever it does, no thread is waited for, which may
    have long to compute.
    """
    # An OpenMP thread that spins as it waits starves the one it waits for when the cores are shared
    # with anything else, and one that sleeps at once is slow to wake: it is to spin for some
    # microseconds. scripts/bench.py threads measures it. Read when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        from gpt.cli.main import main as run

        run()
    except (KeyboardInterrupt, SystemExit) as done:
        if isinstance(done, SystemExit) and done.code != 128 + signal.SIGINT:
            raise
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
