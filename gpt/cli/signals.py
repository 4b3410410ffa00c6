"""Ctrl-C, SIGTERM and SIGHUP: training finishes its step and saves it before the process exits."""

import contextlib
import os
import signal
import threading
import time
from types import FrameType

from gpt.errors import Interrupted

TOGETHER_S = 5  # seconds after the first signal in which torchrun may repeat it


class StopSignals:
    """Context in which the first SIGINT, SIGTERM or SIGHUP only makes `should_stop` return True.

    A second signal has its previous effect. An `Interrupted` that leaves the context gets the exit
    code of the signal. Python allows signal handlers only in the main thread: elsewhere the context
    has no effect.

    Args:
        repeated: ignore further signals for `TOGETHER_S` and print nothing. torchrun sends its
            workers the signals that they already received from the terminal.
    """

    def __init__(self, *, repeated: bool = False) -> None:
        self.received: int | None = None
        self.repeated = repeated
        self._received_at = 0.0
        self._has_begun = False
        self._before: dict[int, signal._HANDLER] = {}

    def on_event(self, event: object) -> None:
        """Note that training has begun, so that there is something to save."""
        self._has_begun = True

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
            if not self.repeated or time.monotonic() - self._received_at > TOGETHER_S:
                self._restore()
                signal.raise_signal(number)
            return
        self.received, self._received_at = number, time.monotonic()
        if not self.repeated:
            what = "what is trained will be saved"
            if not self._has_begun:
                what = "nothing is saved, as training has not begun"
            line = f"stopping, {what}; once more to stop at once\n".encode()
            # to the descriptor: the signal may have interrupted a buffered write of Python
            with contextlib.suppress(OSError):  # the terminal may have been closed
                os.write(2, (b"\n\x1b[J" if os.isatty(2) else b"\n") + line)  # clears the bar

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
