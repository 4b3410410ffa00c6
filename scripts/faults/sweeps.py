"""Sweeps that are killed: each must end with the bits of an unkilled sweep."""

import os
import random
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from faults.tally import Tally
from faults.work import PROCESSES, Work, bits, differences, ended, log_of, remove, tiny, told
from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.reading.sources import open_source
from gpt.recipe.sweep import run_sweep
from gpt.recipe.sweep_spec import Trial
from gpt.text.corpus import Corpus, load_corpus

MOMENT_S = 0.7  # mean seconds until a sweep is killed


def six(text: str) -> list[Trial]:
    """Return runs with three learning rates and two seeds, on the text of that name."""
    asked = []
    for rate in (1e-3, 4e-3, 2e-2):
        for seed in (7, 8):
            values = {"train.learning_rate": str(rate), "seed": str(seed)}
            config = tiny(13, learning_rate=rate, seed=seed, eval_every=6)
            config = load_config(config, [("data.source", text)])
            name = f"lr-{rate},seed-{seed}"
            asked.append(Trial(name=name, values=values, asked=config))
    return asked


def killed_sweeps(work: Work, kills: int, seed: int) -> Tally:
    """Kill sweeps of six runs at random moments, again and again, until they are finished.

    Each run must end as in an unkilled sweep.
    """
    tally = Tally("killed sweeping")
    draws, asked, folder = random.Random(seed), six(work.corpus.name), work.folder / "sweep"
    if code := _swept(work, asked, folder):
        raise RuntimeError(f"an unkilled sweep ended with {code}: {told(folder)}")
    unkilled = {run.name: bits(folder / run.name) for run in asked}
    remove(folder)
    while tally.tries < kills:
        code = _swept(work, asked, folder, draws.expovariate(1 / MOMENT_S))
        if code == -signal.SIGKILL:
            tally.tries += 1
        if code == -signal.SIGKILL and tally.tries == kills:
            code = _swept(work, asked, folder)
        if code not in (0, -signal.SIGKILL):
            tally.lost.append(f"exit code {code}: {told(folder)}")
        if code != -signal.SIGKILL:
            for run in asked:
                tally.changed += differences(folder / run.name, unkilled[run.name])
            remove(folder)
    return tally


def _swept(work: Work, asked: Sequence[Trial], folder: Path, seconds: float = 300.0) -> int:
    """Return the exit code of a process that sweeps; kill it after `seconds`."""
    process = PROCESSES.Process(target=_sweep, args=(asked, work.corpus.name, folder))
    process.start()
    return ended(process, seconds)


def _sweep(asked: Sequence[Trial], text: str, folder: Path) -> None:
    tqdm.set_lock(threading.RLock())  # its own are semaphores, which a kill leaves behind
    os.dup2(os.open(log_of(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), 2)

    def load(config: Config) -> Corpus:  # not sent: its ids are those of a file
        return load_corpus(open_source(text))

    sweep = run_sweep(folder, asked, load=load)
    if sweep.failed:
        raise RuntimeError(str(sweep.failed[0]))
