"""Signals: the command line saves and exits with 128 + the signal's number."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpt.cli.signals import StopSignals
from gpt.errors import Interrupted

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Handlers of these tests' own, whatever started them: nohup ignores SIGHUP."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_first_signal_asks_to_stop_and_gives_the_exit_code(number: signal.Signals) -> None:
    with pytest.raises(Interrupted) as stopped, StopSignals() as signals:
        assert not signals.should_stop()
        os.kill(os.getpid(), number)
        assert signals.should_stop()
        assert signal.getsignal(number) == signal.SIG_DFL, "a second one ends the process"
        raise Interrupted("stopped")
    assert stopped.value.exit_code == 128 + number


def test_what_the_parent_ignores_stays_ignored() -> None:
    """nohup starts a program with SIGHUP ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not signals.should_stop()


def test_no_handler_is_installed_off_the_main_thread() -> None:
    """signal.signal raises ValueError there: a run in a notebook's thread could not start."""

    def in_context() -> list[object]:
        with StopSignals():
            return [signal.getsignal(number) for number in SIGNALS]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_context).result() == [signal.SIG_DFL] * 3
