"""`python -m gpt`, and `gpt`."""

import gc
import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt for SIGINT, SystemExit for another signal.

    During an import the process ends at once: some imports, in C++, would abort.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            with suppress(OSError):
                os.write(2, b"\ngpt: stopped at once\n")
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


for _name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
    _number = getattr(signal, _name, None)
    # nohup and others have a signal ignored, and it stays so
    if _number and signal.getsignal(_number) in (signal.default_int_handler, signal.SIG_DFL):
        signal.signal(_number, _stop)


def main() -> None:
    """Run the command line.

    A signal ends it without a traceback, and without waiting for threads, which may have long to
    compute.
    """
    # An OpenMP thread that spins as it waits starves the one it waits for when the cores are shared
    # with anything else, and one that sleeps at once is slow to wake: it is to spin for some
    # microseconds. scripts/bench.py threads measures it. Read when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        from gpt.cli.main import main as run

        run()
    except (KeyboardInterrupt, SystemExit) as done:
        code = done.code if isinstance(done, SystemExit) else 128 + signal.SIGINT
        if not (isinstance(code, int) and code > 128):
            raise
        with suppress(OSError, ValueError, AttributeError):  # pythonw has no stdout
            sys.stdout.flush()
        os._exit(code)
    finally:  # the system frees the memory; Python's search for cycles takes longer than a second
        gc.freeze()


if __name__ == "__main__":
    main()
