"""metrics.jsonl: append the metrics and notices of a run; repair the file before a resume."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpt.errors import counted
from gpt.files import write_atomically
from gpt.training.callbacks import Callback

log = logging.getLogger(__name__)

METRICS = "metrics.jsonl"


class MetricsFile(Callback):
    """Appends metrics, notices and new plans to `metrics.jsonl` in the folder of a run.

    Each record contains the seconds of training over all resumes, which `elapsed_s` returns.
    """

    def __init__(self, run: Path, elapsed_s: Callable[[], float]) -> None:
        self._file, self._elapsed_s = AppendOnlyFile(run / METRICS), elapsed_s

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._write(step, metrics)

    def on_plan(self, step: int, steps: int) -> None:
        self._write(step, {"event": f"{counted(steps, 'step')} planned"})

    def on_notice(self, step: int, text: str) -> None:
        self._write(step, {"event": text})

    def before_checkpoint(self) -> None:
        """Flush the records to the disk; ignore errors."""
        with suppress(OSError), self._file.path.open("r+b") as file:
            os.fsync(file.fileno())

    def _write(self, step: int, content: Mapping[str, Any]) -> None:
        record = {"step": step, "elapsed_s": round(self._elapsed_s(), 3), **content}
        self._file.write(json.dumps(record).encode() + b"\n")


class AppendOnlyFile:
    """Appends to a file. A write that fails, as on a full disk, is repeated by the next call."""

    def __init__(self, path: Path) -> None:
        self.path, self.unwritten = path, b""

    def write(self, content: bytes) -> None:
        """Append what earlier calls failed to write, and then `content`."""
        failed_before = len(self.unwritten) > 0
        self.unwritten += content
        try:
            with self.path.open("ab", buffering=0) as file:
                while self.unwritten:
                    written = file.write(self.unwritten)
                    self.unwritten = self.unwritten[written:]
        except OSError as error:
            if not failed_before:
                reason = error.strerror or error
                log.warning("cannot write %s (%s); training continues", self.path, reason)


def delete_records_after(run: Path, step: int, *, pending: bool) -> None:
    """Delete damaged lines and all records after `step` from the metrics.jsonl of `run`.

    If `pending`, the run will repeat the evaluation of `step`: delete the metrics of `step`, too.
    """
    path = run / METRICS

    def kept() -> Iterator[bytes]:
        with path.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                    is_repeated = pending and "event" not in record
                    if record["step"] < step or (record["step"] == step and not is_repeated):
                        yield line.rstrip(b"\n") + b"\n"
                except (ValueError, TypeError, KeyError):
                    log.warning("%s: removed a damaged line: %.60r", path, line)

    if path.exists():
        write_atomically(path, kept())
