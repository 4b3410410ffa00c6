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
    """Records metrics, plans and notices in `metrics.jsonl`.

    Args:
        path: the file.
        resumed_at: the step of the checkpoint that the run resumes from; None for a new run.
            Records of later steps are deleted, so that no step is recorded twice.
        pending: whether the evaluation of step `resumed_at` was interrupted and is repeated. If so,
            the metrics of that step are deleted, too.
    """

    def __init__(self, path: Path, resumed_at: int | None, *, pending: bool = False) -> None:
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
    """Appends to a file, which is created if it does not exist.

    If a write fails, for example on a full disk, training continues. The content is kept and
    written by the next write that succeeds. Only the first of several failures in a row is logged.
    """

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
    """Yield the intact lines of the file `path` that a resume from `step` keeps: up to `step`.

    If the evaluation of `step` was interrupted (`pending`), skip the metrics of `step`, which are
    written again.
    """
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
                comes_again = pending and "event" not in record
                if record["step"] < step or (record["step"] == step and not comes_again):
                    yield line.rstrip(b"\n") + b"\n"
            except (ValueError, TypeError, KeyError):
                log.warning("%s: left out a damaged line: %.60r", path, line)
