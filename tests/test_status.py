"""Status lines: each phase that takes longer than a moment says what it does."""

import io
import logging
import sys
import threading

import pytest

from gpt import terminal
from gpt.cli.main import _Notices
from tests.conftest import HANGS_S


class Terminal(io.StringIO):
    """A stderr that is a terminal, or is not."""

    def __init__(self, in_terminal: bool) -> None:
        super().__init__()
        self.in_terminal = in_terminal
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)

    def isatty(self) -> bool:
        return self.in_terminal


class Seen(logging.Handler):
    """Sets an event when a phase is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.event.set()


@pytest.mark.parametrize("in_terminal", [True, False])
def test_a_phase_is_one_line_that_is_erased_in_a_terminal(in_terminal, monkeypatch):
    """Bug: up to 48 s of two minutes passed without a sign.

    Bug: the newline was a write of its own, so a message of a signal handler could precede it.
    """
    monkeypatch.setattr(terminal, "DELAY_S", 0.0)
    monkeypatch.setenv("COLUMNS", "80")
    stderr, seen, log = Terminal(in_terminal), Seen(), logging.getLogger("gpt")
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(log, "handlers", [_Notices(), seen])
    monkeypatch.setattr(log, "level", logging.INFO)
    with terminal.phase("measuring"):
        assert seen.event.wait(HANGS_S)
        log.info("a notice")
    expected = (
        "\rmeasuring ...\x1b[K\r\x1b[Ka notice\n" if in_terminal else "measuring ...\na notice\n"
    )
    assert stderr.getvalue() == expected
    if not in_terminal:
        assert [text for text in stderr.writes if text] == expected.splitlines(keepends=True)
