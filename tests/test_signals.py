"""Signals: the command line saves and exits with 128 + the signal's number."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpt
from gpt.errors import Interrupted
from gpt.runs.read import read_summary
from gpt.signals import StopSignals
from tests.conftest import HANGS_S, small

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
    with (
        pytest.raises(Interrupted) as stopped,
        StopSignals("SIGINT", "SIGTERM", "SIGHUP") as signals,
    ):
        assert not signals.should_stop()
        os.kill(os.getpid(), number)
        assert signals.should_stop()
        raise Interrupted("stopped")
    assert stopped.value.exit_code == 128 + number


TWO_SIGNALS = """
import os, signal, time
import gpt.__main__
from gpt.signals import StopSignals

both = {signal.SIGINT, signal.SIGTERM}
with StopSignals("SIGINT", "SIGTERM", "SIGHUP"):
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


@pytest.mark.parametrize("in_event_loop", [False, True])
def test_the_stop_button_of_a_notebook_saves(text_file, in_event_loop):
    """Bug: KeyboardInterrupt lost all steps; under asyncio.run it came only after the last one."""

    def stop(event: dict[str, object]) -> None:
        if (event["kind"], event["step"]) == ("step", 10):
            signal.raise_signal(signal.SIGINT)

    def train() -> None:
        handler = signal.getsignal(signal.SIGINT)
        try:
            gpt.train(small(), text=text_file, run_dir="runs/stopped", on_event=stop)
        finally:
            assert signal.getsignal(signal.SIGINT) == handler

    async def cell() -> None:
        train()

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt, match=r"step 10, saved.*gpt\.resume"):
        asyncio.run(cell()) if in_event_loop else train()
    assert read_summary(Path("runs/stopped"), "last").step == 10
