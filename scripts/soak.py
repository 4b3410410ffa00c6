"""Kill runs, fill disks and damage files many times; check that nothing is lost or crashes.

    python scripts/soak.py                    a short form, in minutes
    python scripts/soak.py --kills 1000 --reads 100000 --files 10000 --command-lines 2000 --ranks 20

The exit code is 1 if a run was lost or changed, an intact one called damaged, or a command crashed.
It runs on Linux and macOS.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import typer
from faults.command_lines import fuzzed_command_lines
from faults.damage import damaged_files
from faults.disks import without_room
from faults.kills import killed_at_operations, killed_at_random, killed_in_overwrite
from faults.ranks import killed_ranks
from faults.readers import beside_a_writer, without_permission
from faults.sweeps import killed_sweeps
from faults.tally import Tally
from faults.work import Work, remove, tiny

from gpt.reading.sources import open_source
from gpt.text.corpus import load_corpus


def injected(
    work: Work, kills: int, reads: int, files: int, command_lines: int, ranks: int, seed: int
) -> Iterator[Tally]:
    """Inject faults; yield the tally of each kind of fault. For the arguments, see `soak`."""
    if kills:
        chosen, in_overwrite, of_ensemble = 3 * kills // 10, kills // 20, kills // 20
        yield killed_at_random(work, kills - 2 * chosen - in_overwrite - of_ensemble, seed)
        yield killed_at_random(work, of_ensemble, seed, ensemble=3)
        yield from killed_at_operations(work, chosen, chosen, seed)
        yield killed_in_overwrite(work, in_overwrite)
        yield killed_sweeps(work, -(-kills // 50), seed)
    if reads:
        yield beside_a_writer(work, reads)
        yield without_permission(work)
        yield without_room(work)
    if files:
        run = work.folder / "run"
        work.train(tiny(40), run)
        yield damaged_files(work.folder, run, files, seed)
        remove(run)
    if command_lines:
        yield fuzzed_command_lines(work, command_lines, seed)
    if ranks:
        yield killed_ranks(work, ranks, seed)


def soak(
    kills: int = 100,
    reads: int = 5000,
    files: int = 2000,
    command_lines: int = 200,
    ranks: int = 2,
    seed: int = 0,
) -> None:
    """Inject faults, print a JSON object for each kind, and exit with 1 if one has failures.

    Args:
        kills: kills of single runs: 3 in 10 at file operations, 3 in 10 during a resume, 1 in 20
            of an ensemble, the others at random. `kills` / 50 kills of a sweep are added.
        reads: reads during a write. If not 0, unreadable runs and full disks are tried, too.
        files: damaged files.
        command_lines: random command lines.
        ranks: kills of one of two ranks of torchrun.
        seed: seed of all draws.
    """
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * 99)
        work = Work(folder, load_corpus(open_source(str(folder / "text.txt"))))
        for tally in injected(work, kills, reads, files, command_lines, ranks, seed):
            print(json.dumps(vars(tally)), flush=True)
            failures += len(tally.failures)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    typer.run(soak)
