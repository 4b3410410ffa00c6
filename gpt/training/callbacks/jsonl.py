"""metrics.jsonl: one JSON object per line, in the order of the steps."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from gpt.errors import counted
from gpt.files import write_atomically
from gpt.training.callbacks.callback import Callback

log = logging.getLogger(__name__)


class MetricsFile(Callback):
    """Records metrics, plans and notices in `metrics.jsonl`."""

    def __init__(self, path: Path, resumed_at: int | None, *, pending: bool = False) -> None:
        """Open `path`. A resume at the step `resumed_at` first deletes the records after it.

        If the evaluation of that step is still `pending`, it also deletes the step's metrics.
        """
        if resumed_at is not None and path.exists():
            write_atomically(path, _records_until(path, resumed_at, pending))
        self._file = AppendOnlyFile(path)

    def on_metrics(self, step: int, elapsed_s: float, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        self._write(step, elapsed_s, metrics)

    def on_plan(self, step: int, elapsed_s: float, steps: int) -> None:
        """Write the new total number of steps of the run."""
        self._write(step, elapsed_s, {"event": f"{counted(steps, 'step')} planned"})

    def on_notice(self, step: int, elapsed_s: float, text: str) -> None:
        """Write a notice, such as one about a skipped step."""
        self._write(step, elapsed_s, {"event": text})

    def before_checkpoint(self) -> None:
        """Flush the records to the disk."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, step: int, elapsed_s: float, content: Mapping[str, Any]) -> None:
        record = {"step": step, "elapsed_s": round(elapsed_s, 3), **content}
        self._file.write(json.dumps(record).encode() + b"\n")


class AppendOnlyFile:
    """Appends to a file. After a failed write, such as on a full disk, the next one retries."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._unwritten = b""
        self._failed = False

    def write(self, content: bytes) -> None:
        """Write the content that earlier writes failed to write, and then `content`."""
        self._unwritten += content
        try:
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
            while self._unwritten:
                written = self._file.write(self._unwritten)
                self._unwritten = self._unwritten[written:]
            self._failed = False
        except OSError as error:
            if not self._failed:
                reason = error.strerror or error
                log.warning("cannot write %s (%s); training continues", self._path, reason)
            self._failed = True

    def sync(self) -> None:
        """Flush the file to the disk; ignore errors."""
        if self._file is not None:
            with suppress(OSError):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. Content that is still unwritten after failed writes is lost."""
        if self._file is not None:
            self._file.close()


def _records_until(path: Path, step: int, pending: bool) -> Iterator[bytes]:
    """Yield the intact lines up to `step`; if `pending`, without the metrics of `step`."""
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
                comes_again = pending and "event" not in record
                if record["step"] < step or (record["step"] == step and not comes_again):
                    yield line.rstrip(b"\n") + b"\n"
            except (ValueError, TypeError, KeyError):
                log.warning("%s: left out a damaged line: %.60r", path, line)
