"""Every operation of this process on the disk, by Python's audit events: counted, or made to fail.

https://docs.python.org/3/library/audit_events.html
"""

import fcntl
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")
READING = ("os.listdir", "os.scandir")
FAILED = b"this reading fails: "


def before_each_change(act: Callable[[int | None], None]) -> None:
    """Call `act` before each operation that changes the disk, as long as this process lives.

    These are files opened to be written, folders made, names given and taken, and syncs. A file is
    synced once it is written: `act` is given its descriptor, and then None, as for all others.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and arguments[2] & WRITING):
            act(None)

    fsync = os.fsync  # which is no audit event

    def sync(descriptor: int) -> None:
        act(descriptor)
        act(None)
        fsync(descriptor)

    sys.addaudithook(hook)
    mock.patch.object(os, "fsync", sync).start()


def die_at(operation: int) -> None:
    """SIGKILL this process at its operation of that number, from 1 on.

    Where it would be a sync, first half of the file is taken away: it was killed as it wrote.
    """
    left = operation

    def act(descriptor: int | None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if descriptor is not None and not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND:
                with suppress(OSError):  # a folder
                    os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    before_each_change(act)


def fail_at(operation: int, folder: str, error: int) -> None:
    """Let one reading under a folder, of that number, fail with this errno; it says so on stderr.

    Read are files, but for those that safetensors opens, and lists of files.
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
