"""Kill runs, fill disks and damage files many times; check that nothing is lost or crashes.

    python scripts/soak.py                    a short form, in minutes
    python scripts/soak.py --kills 1000 --reads 100000 --files 10000 --command-lines 2000 --ranks 20

Prints a table with a row for each kind of fault, or with --json all counts. The exit code is 1 if
a run was lost or changed, an intact one called damaged, or a command crashed. Linux and macOS.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from faults.command_lines import fuzzed_command_lines
from faults.damage import damaged_files
from faults.disks import without_room
from faults.kills import killed_at_operations, killed_at_random, killed_in_overwrite
from faults.ranks import killed_ranks
from faults.readers import beside_a_writer, without_permission
from faults.sweeps import killed_sweeps
from faults.tally import Tally, header, row
from faults.work import Work, remove, tiny

from gpt.text.corpus import load_corpus
from gpt.text.sources import open_source


def soak(
    work: Work, kills: int, reads: int, files: int, command_lines: int, ranks: int, seed: int
) -> Iterator[Tally]:
    """Inject faults; yield the tally of each kind of fault.

    Args:
        work: the folder and the text.
        kills: kills of single runs: 3 in 10 at file operations, 3 in 10 during a resume, 1 in 20
            of an ensemble, the others at random. `kills` / 50 kills of a sweep are added.
        reads: reads during a write. If not 0, unreadable runs and full disks are tried, too.
        files: damaged files.
        command_lines: random command lines.
        ranks: kills of one of two ranks. If not 0, a link is cut, too.
        seed: seed of all draws.
    """
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


def main() -> None:
    """Run all faults, print the tallies, and exit with 1 if one has failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--reads", type=int, default=5000, help="reads beside a run that saves")
    parser.add_argument("--files", type=int, default=2000, help="damaged files")
    parser.add_argument("--command-lines", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2, help="workers of torchrun that are killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # a process without privileges must be able to open the files
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * 99)
        work = Work(folder, load_corpus(open_source(str(folder / "text.txt"))))
        tallies = []
        counts = (asked.kills, asked.reads, asked.files, asked.command_lines, asked.ranks)
        print(end="" if asked.json else f"{header()}\n")
        for tally in soak(work, *counts, asked.seed):
            tallies.append(tally)
            print(end="" if asked.json else f"{row(tally)}\n", flush=True)
    if asked.json:
        print(json.dumps([asdict(tally) for tally in tallies], indent=2))
    sys.exit(1 if any(tally.failures for tally in tallies) else 0)


if __name__ == "__main__":
    main()
