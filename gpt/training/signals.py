"""Ctrl-C, SIGTERM and SIGHUP: the step in hand is finished and saved before the run leaves."""

import contextlib
import os
import signal
from types import FrameType, TracebackType


class StopRequest:
    """A context in which a first SIGINT, SIGTERM or SIGHUP is noted in `signal_number`, not obeyed.

    A second one does what it always did.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup wants it so
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        self._restore()
        # written at once and past Python's buffers, which the signal may have interrupted
        with contextlib.suppress(OSError):  # the terminal may be what is gone
            os.write(2, b"\nstopping after this step, to save it; once more to leave at once\n")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
