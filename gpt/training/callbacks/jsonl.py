"""metrics.jsonl: one JSON object per line, in the order of the steps."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from gpt.errors import counted
from gpt.files import write_atomically
from gpt.training.callbacks.callback import Callback

log = logging.getLogger(__name__)


class MetricsFile(Callback):
    """Appends metrics, plans and notices to `metrics.jsonl`.

    `elapsed_s` returns the seconds of training over all resumes, which each record contains.
    """

    def __init__(self, path: Path, elapsed_s: Callable[[], float]) -> None:
        self._file, self._elapsed_s = AppendOnlyFile(path), elapsed_s

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        self._write(step, metrics)

    def on_plan(self, step: int, steps: int) -> None:
        """Write the new total number of steps of the run."""
        self._write(step, {"event": f"{counted(steps, 'step')} planned"})

    def on_notice(self, step: int, text: str) -> None:
        """Write a notice, such as one about a skipped step."""
        self._write(step, {"event": text})

    def before_checkpoint(self) -> None:
        """Flush the records to the disk."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, step: int, content: Mapping[str, Any]) -> None:
        record = {"step": step, "elapsed_s": round(self._elapsed_s(), 3), **content}
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


def delete_records_after(path: Path, step: int, *, pending: bool) -> None:
    """Delete the records after `step`, at which a run resumes, and damaged lines.

    If the evaluation of `step` is `pending`, its metrics are deleted, too, as they come again.
    """

    def kept() -> Iterator[bytes]:
        with path.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                    comes_again = pending and "event" not in record
                    if record["step"] < step or (record["step"] == step and not comes_again):
                        yield line.rstrip(b"\n") + b"\n"
                except (ValueError, TypeError, KeyError):
                    log.warning("%s: left out a damaged line: %.60r", path, line)

    if path.exists():
        write_atomically(path, kept())
