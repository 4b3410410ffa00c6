"""Count the file operations of this process by Python's audit events, or make one fail.

https://docs.python.org/3/library/audit_events.html
"""

import fcntl
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")
READING = ("os.listdir", "os.scandir")
FAILED = b"this read fails: "


def before_each_change(act: Callable[[int | None], object]) -> None:
    """Call `act` before each operation of this process that changes the disk.

    Operations are opening a file to write, making or removing a file or folder, renaming, and
    fsync. A file is synced after it was written, so before an fsync `act` is called twice: with the
    descriptor, and with None, as for all other operations.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and arguments[2] & WRITING):
            act(None)

    fsync = os.fsync  # has no audit event

    def sync(descriptor: int) -> None:
        act(descriptor)
        act(None)
        fsync(descriptor)

    sys.addaudithook(hook)
    mock.patch.object(os, "fsync", sync).start()


def die_at(operation: int) -> None:
    """Kill this process with SIGKILL at `operation`, counted from 1.

    If that is an fsync of a new file, cut the file in half first, as if the kill had come during
    the write.
    """
    left = operation

    def act(descriptor: int | None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if descriptor is not None and _is_being_written(descriptor):
                with suppress(OSError):  # a folder
                    os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    before_each_change(act)


def _is_being_written(descriptor: int) -> bool:
    """Return whether a file is opened to write it anew, not to append to it or to sync it."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    return flags & os.O_ACCMODE == os.O_WRONLY and not flags & os.O_APPEND


def log_changes(log: Path) -> None:
    """Append a byte to `log` before each operation that changes the disk."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    before_each_change(lambda _: os.write(descriptor, b"."))


def fail_at(operation: int, folder: str, error: int) -> None:
    """Make the read number `operation` below `folder` fail with an errno, and note it on stderr.

    Reads are opened files, except those that safetensors opens, and lists of files.
    """
    left = operation

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        reads = event in READING or (event == "open" and not arguments[2] & WRITING)
        if reads and str(arguments[0]).startswith(folder):
            left -= 1
            if left == 0:
                os.write(2, FAILED + os.fsencode(str(arguments[0])) + b"\n")
                raise OSError(error, os.strerror(error), str(arguments[0]))

    sys.addaudithook(hook)
