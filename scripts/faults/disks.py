"""Full disks: one message, and once there is room the run can be continued to the same bits."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.commands import Command
from faults.tally import Tally
from faults.work import Work, bits, differences, remove, tiny
from gpt.config.yaml import to_yaml

INODES = (*range(0, 31, 3), 40)  # free inodes; a run has 17 files at its second checkpoint
PAGES = (0, 1, 4, 8, 16, 32, 64, 96, 128)  # free pages of 4 KiB


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system in a folder, as long as the context."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes=999", "none", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def without_room(work: Work) -> Tally:
    """Start and resume `gpt train` on a disk of 20 MB with few free inodes or bytes.

    Each must end with exit code 0, or with 1 and one message. Once there is room, the run is
    resumed, or started again if nothing was saved, and must end with the expected bits.
    """
    tally, config, longer = Tally("disk without room"), tiny(4, every=2), tiny(8, every=2)
    part, resumed = work.folder / "part", work.folder / "resumed"
    settings = work.folder / "settings.yaml"
    settings.write_text(to_yaml(config))
    work.train(config, part)
    shutil.copytree(part, resumed)
    work.train(longer, resumed, again="resume")
    expected = {False: bits(part), True: bits(resumed)}
    for inodes, pages, resume in _rooms():
        try:
            with small_disk(work.folder / "disk", "20m") as disk:
                run = disk / "run"
                arguments = ["--config", str(settings), "--run-dir", str(run)]
                if resume:
                    shutil.copytree(part, run)
                    arguments = ["--resume", str(run), "--set", "train.steps=8"]
                name = f"inodes {inodes}, pages {pages}, resume {resume}"
                _fill(disk, inodes, pages)
                _train_without_room(work, name, arguments, tally)
                shutil.rmtree(disk / "filler")
                if problem := work.finish(longer if resume else config, run):
                    tally.lost.append(f"{name}: {problem}")
                else:
                    tally.changed += differences(run, expected[resume])
                tally.tries += 1
        except subprocess.CalledProcessError as error:  # needs Linux and root
            tally.skipped = f"this process cannot mount a file system: {error}"
            break
    for run in (part, resumed):
        remove(run)
    return tally


def _rooms() -> Iterator[tuple[int | None, int | None, bool]]:
    """Yield free inodes, or free pages, and whether to resume."""
    for resume in (False, True):
        yield from ((inodes, None, resume) for inodes in INODES)
        yield from ((None, pages, resume) for pages in PAGES)


def _fill(disk: Path, inodes: int | None, pages: int | None) -> None:
    """Fill the disk up to `inodes`, or `pages` of 4 KiB."""
    filler = disk / "filler"
    filler.mkdir()
    if inodes is not None:
        for number in range(os.statvfs(disk).f_ffree - inodes):
            (filler / str(number)).touch()
    if pages is not None:
        (filler / "bytes").write_bytes(bytes(shutil.disk_usage(disk).free - 4096 * pages))


def _train_without_room(work: Work, name: str, arguments: list[str], tally: Tally) -> None:
    """Run `gpt train` in a process of its own, and note how it ended."""
    done = Command(["train", work.corpus.name, *arguments], work.folder, work.folder).run()
    tally.outcomes[f"exit code {done.code}"] += 1
    if done.code not in (0, 1) or len(done.messages) != done.code or "Traceback" in done.err:
        tally.crashes.append(f"{name}: exit code {done.code}: {done.err}")
