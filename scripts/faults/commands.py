"""Command lines of `gpt` that run in processes of their own."""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.work import HANGS_S, PROCESSES, ended

STREAMS = ("stdin", "stdout", "stderr")


@dataclass(frozen=True)
class Ended:
    """How a command ended. `code` is negative after a signal."""

    code: int
    out: str
    err: str

    @property
    def messages(self) -> list[str]:
        """The messages of `gpt` on stderr."""
        return [line for line in self.err.splitlines() if line.startswith("gpt: ")]


@dataclass(frozen=True)
class Command:
    """Arguments of `gpt`, the folder of its streams and cache, and where and how it starts."""

    arguments: list[str]
    folder: Path
    here: Path
    stdin: bytes = b""
    before: Callable[[], object] | None = None

    def __str__(self) -> str:
        return f"gpt {shlex.join(self.arguments)} < {self.stdin!r}"

    def run(self, ctrl_c_s: Sequence[float] = ()) -> Ended:
        """Run the command; send Ctrl-C after each of `ctrl_c_s`, and SIGKILL after HANGS_S."""
        (self.folder / "stdin").write_bytes(self.stdin)
        process = PROCESSES.Process(target=self._call)
        process.start()
        waited = 0.0
        for seconds in ctrl_c_s:
            process.join(seconds - waited)
            waited = seconds
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, signal.SIGINT)
        code = ended(process, HANGS_S)
        out, err = (
            (self.folder / name).read_text("utf-8", errors="backslashreplace")
            for name in STREAMS[1:]
        )
        return Ended(code, out, err)

    def _call(self) -> None:
        for number, name in enumerate(STREAMS):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
            os.dup2(os.open(self.folder / name, flags), number)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        os.environ["XDG_CACHE_HOME"] = str(self.folder / "cache")
        os.chdir(self.here)
        sys.argv = ["gpt", *self.arguments]
        from gpt.cli.main import main

        if self.before:
            self.before()
        try:
            main()
        except KeyboardInterrupt:  # before the command handles signals
            sys.exit(130)
