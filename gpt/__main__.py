"""Entry point of `gpt` and `python -m gpt`."""

import gc
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

from gpt.memory import cpu_limit


def _stop(number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise KeyboardInterrupt for SIGINT, SystemExit for others.

    If the signal arrives during an import, end the process at once. An exception at that moment
    would make some C++ modules abort the process.
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
    # a signal that the parent process ignores, such as SIGHUP under nohup, stays ignored
    if _number and signal.getsignal(_number) in (signal.default_int_handler, signal.SIG_DFL):
        signal.signal(_number, _stop)


def main() -> None:
    """Run the command line.

    A signal ends the process without a traceback, and without waiting for other threads, which may
    compute for minutes.
    """
    # Let OpenMP threads spin for a short time before they sleep. By default, they spin for a
    # long time, which slows down other programs, and this one too if another program uses its
    # cores. Without spinning, the threads wake up late. `scripts/bench threads` measures this.
    # torch reads the variable when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Let numpy's BLAS use one thread. Its threads always spin while they wait for each other, which
    # makes sampling many times slower while another program runs. `scripts/bench busy_core`
    # measures this. numpy reads the variable when numpy is imported; torch has its own threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # By default, torch uses one thread for each CPU of the machine, even in a container that is
    # limited to some of them.
    if (limit := cpu_limit()) is not None and limit < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(limit))
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
    finally:
        gc.freeze()  # avoid a last garbage collection, which would take more than a second


if __name__ == "__main__":
    main()
