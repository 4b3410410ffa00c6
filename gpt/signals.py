"""Handle Ctrl-C, SIGTERM and SIGHUP: finish the training step, save, and then stop training."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from gpt.distributed import is_launched
from gpt.errors import Interrupted

STOPPING = b"stopping, and saving the steps trained so far; another Ctrl-C stops at once\n"


class StopSignals:
    """Context in which the first signal to arrive only makes `should_stop` return True.

    `names` are signals such as SIGINT. A second signal has its usual effect. Only workers of
    torchrun ignore a second one: a Ctrl-C reaches them twice, from the terminal and from torchrun.
    After a signal, an `Interrupted` error that leaves the context gets the exit code 128 + the
    signal's number. The context has no effect inside another such context, or outside the main
    thread, because other threads get no signals.
    """

    def __init__(self, *names: str) -> None:
        self.names = names
        self.received: int | None = None  # number of the first signal
        self.ignore_second = is_launched()
        self._before: dict[int, signal._HANDLER] = {}

    def should_stop(self) -> bool:
        """Return whether a signal was received."""
        return self.received is not None

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for name in self.names:
                number = getattr(signal, name, None)  # Windows has no SIGHUP
                handler = signal.getsignal(number) if number else None
                is_ours = isinstance(getattr(handler, "__self__", None), StopSignals)
                # nohup ignores SIGHUP; a handler that Python did not set (None) cannot be restored
                if number and handler not in (signal.SIG_IGN, None) and not is_ours:
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
            # write unbuffered, because the signal may have interrupted a buffered write
            with contextlib.suppress(OSError):  # the terminal may have been closed
                os.write(2, (b"\n\x1b[J" if os.isatty(2) else b"\n") + STOPPING)  # clears the bar

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


@contextlib.contextmanager
def saving_on_interrupt(should_stop: Callable[[], bool] | None) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True if `should_stop` does, or after Ctrl-C.

    After Ctrl-C or the stop button of a notebook, raise KeyboardInterrupt at the end of the block.
    """
    with StopSignals("SIGINT") as signals:
        try:
            yield lambda: signals.should_stop() or (should_stop is not None and should_stop())
        except Interrupted as error:
            if signals.received is None:
                raise
            stopped = str(error)
        else:
            stopped = "training was done already"
    if signals.received is not None:
        raise KeyboardInterrupt(stopped)
