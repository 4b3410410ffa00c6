"""Signals: the command line saves and exits with 128 + the signal's number."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpt.cli.signals import StopSignals
from gpt.errors import Interrupted
from tests.conftest import HANGS_S

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Handlers of these tests' own, whatever started them: nohup ignores SIGHUP."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_first_signal_asks_to_stop_and_gives_the_exit_code(number):
    with pytest.raises(Interrupted) as stopped, StopSignals() as signals:
        assert not signals.should_stop()
        os.kill(os.getpid(), number)
        assert signals.should_stop()
        raise Interrupted("stopped")
    assert stopped.value.exit_code == 128 + number


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_does_what_it_did_before(number):
    received = []
    signal.signal(number, lambda number, frame: received.append(number))
    with StopSignals():
        os.kill(os.getpid(), number)
        assert received == []
        os.kill(os.getpid(), number)
        assert received == [number]


TWO_SIGNALS = """
import os, signal, time
import gpt.__main__
from gpt.cli.signals import StopSignals

both = {signal.SIGINT, signal.SIGTERM}
with StopSignals():
    signal.pthread_sigmask(signal.SIG_BLOCK, both)
    for number in both:
        os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
    time.sleep(600)
"""


def test_two_signals_at_once_end_the_program(start):
    """Bug: `OSError: Signal 15 ignored due to race condition`, and it continued."""
    process = start(sys.executable, "-c", TWO_SIGNALS, stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=HANGS_S)
    assert (process.returncode, "Error" in err) == (128 + signal.SIGTERM, False)


def test_no_handler_is_installed_off_the_main_thread():
    """signal.signal raises ValueError there: a run in a notebook's thread could not start."""

    def in_context() -> list[object]:
        with StopSignals():
            return [signal.getsignal(number) for number in SIGNALS]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_context).result() == [signal.SIG_DFL] * 3
