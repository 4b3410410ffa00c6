"""Record what a program does to a disk, and compute the states that a power cut can leave.

A write reaches the disk for certain only by fsync: the data of a file by fsync of the file, the
names in a folder by fsync of the folder. Without fsync a write may be lost. Changes of names are
kept in their order, as a file system with a journal does, but data may be lost or kept.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")  # audit events
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT  # flags of the audit event `open`
ROOT = ""  # path of the recorded folder

Disk = dict[str, bytes | None]
"""Path to content, None for a folder."""


@dataclass(frozen=True)
class Moment:
    """The disk before or after an operation."""

    inodes: dict[str, int]  # by path
    contents: dict[int, bytes | None]  # by inode; None for a folder
    synced: int | None  # inode that fsync was called for, just before


class Recorder:
    """Records each moment of a folder, in a process that only this test uses."""

    def __init__(self, root: Path) -> None:
        self.root, self.moments = root, list[Moment]()
        self._held = dict[int, int]()  # descriptors, so that no inode number is used twice
        self._is_looking = False
        fsync = os.fsync

        def sync(descriptor: int) -> None:
            self.note()
            fsync(descriptor)
            self.note(os.fstat(descriptor).st_ino)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in CHANGES or (event == "open" and arguments[2] & WRITING):
                self.note()

        os.fsync = sync
        sys.addaudithook(hook)

    def note(self, synced: int | None = None) -> None:
        """Record the present state."""
        if self._is_looking:  # our own reads
            return
        self._is_looking = True
        inodes, contents = dict[str, int](), dict[int, bytes | None]()
        for path in (self.root, *sorted(self.root.rglob("*"))):
            name = path.relative_to(self.root).as_posix() if path != self.root else ROOT
            inode = inodes[name] = path.stat().st_ino
            contents[inode] = None if path.is_dir() else path.read_bytes()
            if inode not in self._held:
                self._held[inode] = os.open(path, os.O_RDONLY)
        self.moments.append(Moment(inodes, contents, synced))
        self._is_looking = False


def states(moments: list[Moment]) -> Iterator[tuple[int, Disk]]:
    """Yield the number of a moment and a disk that a power cut at this moment can leave."""
    synced_at = dict.fromkeys(moments[0].contents, 0)
    data, latest = dict(moments[0].contents), dict(moments[0].contents)
    for now, moment in enumerate(moments):
        latest |= moment.contents
        if moment.synced in moment.contents:  # not a folder above the recorded one
            synced_at[moment.synced] = now
            data[moment.synced] = moment.contents[moment.synced]
        for kept in range(now + 1):  # names are on the disk up to this moment, or to a later fsync
            for is_data_lost in (True, False):
                disk: Disk = {}
                _add(disk, ROOT, moments, kept, synced_at, data if is_data_lost else latest)
                yield now, disk


def _add(
    disk: Disk,
    path: str,
    moments: list[Moment],
    kept: int,
    synced_at: dict[int, int],
    data: dict[int, bytes | None],
    inode: int | None = None,
) -> None:
    """Add to `disk` what is in the folder `path`, as of `kept` or of the folder's last fsync."""
    inode = moments[0].inodes[ROOT] if inode is None else inode
    moment = moments[max(kept, synced_at.get(inode, 0))]
    folder = next((name for name, i in moment.inodes.items() if i == inode), None)
    if folder is None:  # the folder was made later
        return
    for name, child in moment.inodes.items():
        if name != ROOT and name.rpartition("/")[0] == folder:
            below = f"{path}/{name.rpartition('/')[2]}".lstrip("/")
            if moment.contents[child] is None:
                disk[below] = None
                _add(disk, below, moments, kept, synced_at, data, child)
            else:
                disk[below] = data.get(child) or b""


def write(disk: Disk, folder: Path) -> None:
    """Write the files and folders of `disk`."""
    folder.mkdir()
    for path, content in disk.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
