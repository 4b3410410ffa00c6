"""Files that only grow, by writes that are made in full or not at all."""

import logging
import os
from io import FileIO
from pathlib import Path

log = logging.getLogger(__name__)


class AppendOnlyFile:
    """Appends to a file, which is created if it does not exist.

    Content that cannot be written, on a full disk for example, is kept and written once there is
    room. A failure is logged, once until a write succeeds again, and does not end the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._size = 0  # bytes of complete writes
        self._unwritten = b""
        self._failed = False

    def write(self, content: bytes) -> None:
        """Write `content`, after the content of earlier writes that failed."""
        self._unwritten += content
        try:
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
                self._size = self._path.stat().st_size
            os.ftruncate(self._file.fileno(), self._size)  # removes a part of a failed write
            remaining = memoryview(self._unwritten)
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
        except OSError as error:
            self._warn(error)
        else:
            self._size += len(self._unwritten)
            self._unwritten, self._failed = b"", False

    def sync(self) -> None:
        """Flush the file to the disk."""
        try:
            if self._file is not None:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._warn(error)

    def close(self) -> None:
        """Close the file; unwritten content is lost."""
        if self._file is not None:
            self._file.close()

    def _warn(self, error: OSError) -> None:
        if not self._failed:
            reason = error.strerror or error
            log.warning("cannot write %s (%s); training continues", self._path, reason)
        self._failed = True
