"""Readers of a run that is being written, or that cannot be read for a moment."""

import errno
import shutil
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest import mock

import gpt.training.checkpointer
from faults.operations import FAILED, fail_at
from faults.tally import Tally
from faults.work import Work, bits, differences, ended, hash_of, remove, stderr, tiny, told
from gpt.config.schema import Config
from gpt.errors import GPTError
from gpt.runs.format import INDEX, CheckpointData, TrainingState
from gpt.runs.read import read_checkpoint
from gpt.runs.write import write_checkpoint

ERRORS = (errno.EACCES, errno.EIO, errno.ESTALE)


def _log_what_is_written(log: Path) -> None:
    """Log the hash of each checkpoint's weights before it is written."""

    def noted(run: Path, data: CheckpointData, state: TrainingState) -> None:
        with log.open("a") as file:
            file.write(f"{data.step} {hash_of(data)}\n")
        write_checkpoint(run, data, state)

    mock.patch.object(gpt.training.checkpointer, "write_checkpoint", noted).start()


def beside_a_writer(work: Work, reads: int) -> Tally:
    """Read `best` and `last` while a run saves every step and keeps few checkpoints."""
    tally, run = Tally("read beside a writer"), work.folder / "written"
    log = work.folder / "written.log"
    config = tiny(10**8, every=1, eval_every=2)
    found: Counter[tuple[int, str]] = Counter()
    process = work.start(config, run, partial(_log_what_is_written, log))
    while not (run / "checkpoints" / INDEX).exists() and process.is_alive():
        time.sleep(0.01)
    while tally.tries < reads and process.is_alive():
        which = ("best", "last")[tally.tries % 2]
        tally.tries += 1
        try:
            data = read_checkpoint(run, which)
        except (GPTError, OSError) as error:
            tally.false_alarms.append(f"{which}, read {tally.tries}: {error}")
        else:
            found[data.step, hash_of(data)] += 1
    if not process.is_alive():
        tally.lost.append(f"the writer ended: {told(run)}")
    ended(process, 0)
    written = set(log.read_text().splitlines())
    tally.changed += [f"step {s}" for s, h in found if f"{s} {h}" not in written]
    tally.outcomes["checkpoints written"] = len(written)
    tally.outcomes["different checkpoints read"] = len(found)
    remove(run)
    log.unlink()
    return tally


def without_permission(work: Work) -> Tally:
    """Resume a run while one of its reads fails; try each read.

    An unreadable file is not damaged, so nothing of the run may be renamed or removed.
    """
    tally, config, longer = Tally("resumed unreadable"), tiny(4, every=2), tiny(8, every=2)
    run, resumed = work.folder / "unreadable", work.folder / "resumed"
    for target in (run, resumed):
        work.train_to_the_end(config, target)
    work.train_to_the_end(longer, resumed, again="resume")
    expected = bits(resumed)
    for number, error in enumerate(cycle(ERRORS), start=1):
        name = f"{errno.errorcode[error]}-{number}"
        fails = partial(fail_at, number, str(work.folder / name / "checkpoints"), error)
        if not _resume_unreadable(work, longer, run, name, fails, expected, tally):
            break  # there are no more reads
    for leftover in (run, resumed):
        remove(leftover)
    return tally


def _resume_unreadable(
    work: Work,
    config: Config,
    run: Path,
    name: str,
    before: Callable[[], object],
    expected: dict[str, Any],
    tally: Tally,
) -> bool:
    """Resume a copy of a run, and again when it is readable; return whether a read failed."""
    copy = work.folder / name
    shutil.copytree(run, copy)
    code = work.train(config, copy, before, again="resume")
    failed = bool(code) or FAILED.decode() in stderr(copy)
    tally.tries += failed
    tally.outcomes[f"{name.split('-')[0]}: exit code {code}"] += failed
    aside = [path.name for path in (copy / "checkpoints").glob("damaged*")]
    # the indented lines of a traceback are code, in which these words are no messages
    messages = [line for line in stderr(copy).splitlines() if not line.startswith(" ")]
    if aside or any("damaged" in line or "no checkpoint" in line for line in messages):
        tally.false_alarms.append(f"{name}: {' '.join(aside)} {told(copy)}")
    if code and (problem := work.finish(config, copy)):
        tally.lost.append(problem)
    else:
        tally.changed += differences(copy, expected)
    remove(copy)
    return failed
