"""Ctrl-C, SIGTERM and SIGHUP: training finishes its step and saves it before the process exits."""

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType

from gpt.errors import Interrupted


class StopSignals:
    """A context in which a first SIGINT, SIGTERM or SIGHUP only makes `should_stop` true.

    A second one does what it did before. An `Interrupted` that leaves the context gets the exit
    code of the signal. Outside the main thread, where Python allows no handlers, none is installed.

    `repeated`: a second one does nothing, and the first says nothing, as each may come twice: what
    a terminal has sent to torchrun's workers torchrun sends them, too.
    """

    def __init__(self, *, repeated: bool = False) -> None:
        self.received: int | None = None
        self.repeated = repeated
        self._before: dict[int, signal._HANDLER] = {}

    def should_stop(self) -> bool:
        """Whether a signal has been received."""
        return self.received is not None

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
                number = getattr(signal, name, None)
                if number and signal.getsignal(number) != signal.SIG_IGN:  # nohup wants it so
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()
        if isinstance(error, Interrupted) and self.received is not None:
            error.exit_code = 128 + self.received

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if self.repeated:
            return
        self._restore()
        # written at once and past Python's buffers, which the signal may have interrupted
        with contextlib.suppress(OSError):  # the terminal may be what is gone
            line = b"stopping, what is trained will be saved; once more to stop at once\n"
            os.write(2, (b"\n\x1b[J" if os.isatty(2) else b"\n") + line)  # a bar may be below

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
