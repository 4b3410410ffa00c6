"""Ctrl-C, SIGTERM and SIGHUP: training finishes its step and is saved before the process exits."""

import contextlib
import os
import signal
import threading
from types import FrameType

from gpt.errors import Interrupted


class StopSignals:
    """Context in which the first SIGINT, SIGTERM or SIGHUP only makes `should_stop` return True.

    A second signal has its usual effect, unless `ignore_second` is set. Set it for workers of
    torchrun: a Ctrl-C reaches them twice, from the terminal and from torchrun. After a signal, an
    `Interrupted` error that leaves the context gets the exit code 128 + the signal's number.
    Outside the main thread, where Python allows no signal handlers, the context has no effect.
    """

    def __init__(self, *, ignore_second: bool = False) -> None:
        self.received: int | None = None  # number of the signal
        self.ignore_second = ignore_second
        self._before: dict[int, signal._HANDLER] = {}

    def should_stop(self) -> bool:
        """Return whether a signal was received."""
        return self.received is not None

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
                number = getattr(signal, name, None)
                if number and signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._restore()
        if isinstance(error, Interrupted) and self.received is not None:
            error.exit_code = 128 + self.received

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if not self.ignore_second:
                self._restore()
                signal.raise_signal(number)
            return
        self.received = number
        if not self.ignore_second:
            line = b"stopping, and saving the steps trained so far; once more to stop at once\n"
            # to the descriptor: the signal may have interrupted a buffered write of Python
            with contextlib.suppress(OSError):  # the terminal may have been closed
                os.write(2, (b"\n\x1b[J" if os.isatty(2) else b"\n") + line)  # clears the bar

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
