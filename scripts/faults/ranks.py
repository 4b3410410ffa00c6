"""Runs under torchrun of which a worker is killed."""

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from faults.tally import Tally
from faults.work import Work, bits, differences, log_of, remove, stderr, tiny, told
from gpt.config.schema import Config
from gpt.config.yaml import to_yaml

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
START_S = 12.0  # seconds until workers train, at most


def killed_ranks(work: Work, kills: int, seed: int, ranks: int = 2) -> Tally:
    """Kill a worker of a job at random moments, again and again, until the job is finished.

    torchrun restarts the workers. They must end with the bits of an undisturbed job.
    """
    tally = Tally(f"killed of {ranks} ranks")
    draws, config = random.Random(seed), tiny(2500, every=20)
    run = work.folder / "undisturbed"
    if code := _start(work, config, run, ("--standalone", f"--nproc-per-node={ranks}")).wait():
        raise RuntimeError(f"an undisturbed job ended with {code}: {told(run)}")
    undisturbed = bits(run)
    run = work.folder / "killed"
    while tally.tries < kills:
        restarts = f"--max-restarts={kills - tally.tries}"
        options = ("--standalone", f"--nproc-per-node={ranks}", restarts)
        job = _start(work, config, run, options)
        while tally.tries < kills and job.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                job.wait(draws.uniform(0, 2 * START_S))
            with suppress(IndexError, psutil.NoSuchProcess):
                workers = psutil.Process(job.pid).children()
                workers[draws.randrange(ranks)].kill()
                tally.tries += 1
        if code := job.wait():
            tally.lost.append(f"exit code {code}: {_messages(run)}")
        else:
            tally.changed += differences(run, undisturbed)
        remove(run)
    remove(work.folder / "undisturbed")
    return tally


def _messages(run: Path) -> list[str]:
    """Return the messages of our program, without those of torchrun."""
    return [line for line in stderr(run).splitlines() if line.startswith("gpt: ")]


def _start(
    work: Work, config: Config, run: Path, options: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start torchrun; append its stderr to the log of the run."""
    path = run.with_suffix(".yaml")
    path.write_text(to_yaml(config), "utf-8")
    command = ["-m", "gpt", "train", work.corpus.name, "--config", str(path), "--run-dir", str(run)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log_of(run).open("ab") as log:
        return subprocess.Popen(
            [*TORCHRUN, *options, *command],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=environment,
        )
