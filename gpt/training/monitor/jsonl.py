"""metrics.jsonl: one JSON object a line, in the order of the steps."""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpt.files import write_atomically
from gpt.training.monitor.append import AppendOnlyFile

log = logging.getLogger(__name__)

LONGEST_LINE = 2**16  # bytes that are read as one line


class JSONLines:
    """The records of a run in `metrics.jsonl`; those after the step it resumes at are dropped.

    So are the metrics of that step, if they are `pending`: a run was killed as it recorded them.
    """

    def __init__(self, path: Path, resumed_at: int | None, *, pending: bool = False) -> None:
        if resumed_at is not None and path.exists():
            _drop_records_after(path, resumed_at, pending)
        self._file = AppendOnlyFile(path)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line."""
        self._file.write(json.dumps(record).encode() + b"\n")

    def sync(self) -> None:
        """Flush the records to the disk."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _drop_records_after(path: Path, step: int, pending: bool) -> None:
    """Also drop a last line that was cut off, and a rollback to `step`: it will happen again.

    Line by line: a long run's file may be large.
    """

    def lines_kept() -> Iterator[bytes]:
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                try:
                    record = json.loads(line)
                    event = record.get("event", "")
                    comes_again = event.startswith("rolled back") or (pending and not event)
                    if record["step"] < step or (record["step"] == step and not comes_again):
                        yield line.rstrip(b"\n") + b"\n"
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    log.warning("%s: left out a damaged line: %.60r", path, line)

    write_atomically(path, lines_kept())
