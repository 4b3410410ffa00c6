"""Runs that are killed: none may be lost, and each must end with the bits of an unkilled run."""

import random
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from faults.operations import die_at, log_changes
from faults.tally import Tally
from faults.work import Work, bits, differences, ended, remove, resume_or_overwrite, tiny, told
from gpt.config.schema import Config

STEPS = 99  # steps of a run that is killed at random
MOMENT_S = 0.4  # mean seconds until a process is killed
SECOND_KILLS = 3  # most kills of one run during a resume; a later resume might end before
FIRST_OPERATIONS = 40  # file operations of a resume up to its first checkpoint


def short(ensemble: int = 1) -> Config:
    """Return a config with a few checkpoints, of which the best is not always the last."""
    return tiny(steps=4, every=1, eval_every=2, ensemble=ensemble)


def killed_at_random(work: Work, kills: int, seed: int, ensemble: int = 1) -> Tally:
    """Kill runs at random moments, again and again, until they are finished."""
    tally = Tally("killed at a moment" + _of_members(ensemble))
    draws, config = random.Random(seed), tiny(STEPS, ensemble=ensemble)
    run = work.folder / "killed"
    unkilled = _reference(work, config, work.folder / "unkilled")
    while tally.tries < kills:
        process = work.start(config, run, again=resume_or_overwrite(run))
        code = ended(process, draws.expovariate(1 / MOMENT_S))
        if code == -signal.SIGKILL:
            tally.tries += 1
        elif code:
            tally.lost.append(f"exit code {code}: {told(run)}")
        if code != -signal.SIGKILL or tally.tries == kills:
            _finish(work, config, run, tally, unkilled)
    return tally


def _of_members(ensemble: int) -> str:
    return f" x {ensemble}" if ensemble > 1 else ""


def _reference(work: Work, config: Config, run: Path) -> dict[str, Any]:
    """Train a run that is not killed, and return its bits."""
    remove(run)
    work.train_to_the_end(config, run)
    return bits(run)


def killed_at_operations(
    work: Work, kills: int, second_kills: int, seed: int, ensemble: int = 1
) -> list[Tally]:
    """Kill a run at its file operations, evenly spread; kill some again during the resume."""
    names = "killed at an operation", "killed as it resumes"
    first, second = (Tally(name + _of_members(ensemble)) for name in names)
    draws, config = random.Random(seed), short(ensemble)
    unkilled = _reference(work, config, work.folder / "unkilled")
    numbers = [*spread(_operations(work, config), kills)]
    for index, operation in enumerate(numbers):
        run = work.folder / f"operation-{operation}"
        again = run.with_name(f"{run.name}-again")
        if not _killed(work, config, run, operation, first):
            continue
        for _ in range(SECOND_KILLS):
            due = second.tries < (index + 1) * second_kills // kills
            if due and run.exists():
                shutil.copytree(run, again)
                _kill_resume(work, config, again, draws, second, unkilled)
        _finish(work, config, run, first, unkilled)
    return [first, second]


def _operations(work: Work, config: Config) -> int:
    """Count the file operations of a run: the last at which it can be killed."""
    run, log = work.folder / "counted", work.folder / "operations"
    work.train_to_the_end(config, run, partial(log_changes, log))
    remove(run)
    return log.stat().st_size


def spread(count: int, kills: int) -> Iterator[int]:
    """Yield `kills` numbers from 1 to `count`, evenly spread."""
    whole, rest = divmod(kills, count)
    for _ in range(whole):
        yield from range(1, count + 1)
    yield from (1 + index * count // rest for index in range(rest))


def _killed(work: Work, config: Config, run: Path, operation: int, tally: Tally) -> bool:
    """Start a run that kills itself at `operation`; return whether it did."""
    remove(run)
    code = work.train(config, run, partial(die_at, operation))
    if code == -signal.SIGKILL:
        tally.tries += 1
    elif code:
        tally.lost.append(f"{run.name}: exit code {code}: {told(run)}")
    return code == -signal.SIGKILL


def _kill_resume(
    work: Work,
    config: Config,
    run: Path,
    draws: random.Random,
    tally: Tally,
    unkilled: dict[str, Any],
) -> None:
    """Resume a killed run, and kill it at one of its first operations or at random."""
    again = resume_or_overwrite(run)
    if draws.random() < 0.5:
        operation = draws.randint(1, FIRST_OPERATIONS)
        code = work.train(config, run, partial(die_at, operation), again=again)
    else:
        code = ended(work.start(config, run, again=again), draws.uniform(0, MOMENT_S))
    if code == -signal.SIGKILL:
        tally.tries += 1
    elif code:
        tally.lost.append(f"{run.name}: exit code {code}: {told(run)}")
    else:  # it ended before
        tally.outcomes["done before the kill"] += 1
    _finish(work, config, run, tally, unkilled)


def _finish(work: Work, config: Config, run: Path, tally: Tally, unkilled: dict[str, Any]) -> None:
    if problem := work.finish(config, run):
        tally.lost.append(problem)
    else:
        tally.changed += differences(run, unkilled)
    remove(run)


def killed_in_overwrite(work: Work, kills: int) -> Tally:
    """Kill a run during `--overwrite`, and repeat the command."""
    tally, config, other = Tally("killed overwriting"), short(), tiny(steps=4, seed=7)
    unkilled = _reference(work, config, work.folder / "unkilled")
    old = work.folder / "old"
    _reference(work, other, old)
    for number in range(1, kills + 1):
        run = work.folder / f"overwritten-{number}"
        shutil.copytree(old, run)
        before = partial(die_at, number)
        if work.train(config, run, before, again="overwrite") != -signal.SIGKILL:
            tally.lost.append(f"{run.name}: not killed: {told(run)}")
        tally.tries += 1
        if code := work.train(config, run, again="overwrite"):
            tally.lost.append(f"{run.name}: exit code {code}: {told(run)}")
        else:
            tally.changed += differences(run, unkilled)
        remove(run)
    remove(old)
    return tally
