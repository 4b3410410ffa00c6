"""Tiny runs that are trained in processes of their own, and comparisons of their bits."""

import hashlib
import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gpt.config.schema import Config
from gpt.errors import GPTError, UsageError
from gpt.runs.format import CheckpointData, has_checkpoint
from gpt.runs.read import read_checkpoint, read_index, read_to_resume
from gpt.text.corpus import Corpus
from gpt.training.start import Mode, train_run

# A fork server that has imported all modules starts a process in moments. It has none of autograd's
# threads, which do not survive a fork.
PROCESSES = multiprocessing.get_context("forkserver")
LOADED = ["gpt.training.start", "gpt.cli.main", "filelock", "torch._dynamo", "matplotlib.pyplot"]
PROCESSES.set_forkserver_preload([*LOADED, "unittest.mock"])
HANGS_S = 300  # seconds until a process is killed
Before = Callable[[], object]


def tiny(steps: int, every: int = 3, **changes: Any) -> Config:
    """Return a config with fast steps and many checkpoints."""
    seed, ensemble = changes.pop("seed", 1337), changes.pop("ensemble", 1)
    model = {"T": 13, "C": 24, "n_layer": 2, "n_head": 3, "head_size": 10, "ensemble": ensemble}
    train = {"steps": steps, "batch_size": 3, "checkpoint_every": every, "eval_every": 50}
    train |= {"sample_length": 0, **changes}
    fixed = {"device": "cpu", "threads": 1, "seed": seed}
    return Config.model_validate({**fixed, "model": model, "train": train})


@dataclass(frozen=True)
class Work:
    """A scratch folder and a text."""

    folder: Path
    corpus: Corpus

    def start(
        self, config: Config, run: Path, before: Before | None = None, *, again: Mode = "new"
    ) -> ForkServerProcess:
        """Call `before` and train in another process.

        `again` is empty for a new folder, else "resume" or "overwrite".
        """
        process = PROCESSES.Process(target=_train, args=(config, self.corpus, run, before, again))
        process.start()
        return process

    def train(
        self, config: Config, run: Path, before: Before | None = None, *, again: Mode = "new"
    ) -> int:
        """Train in another process; return its exit code, negative after a signal."""
        return ended(self.start(config, run, before, again=again))

    def train_to_the_end(
        self, config: Config, run: Path, before: Before | None = None, *, again: Mode = "new"
    ) -> None:
        """Train in another process, which must not fail."""
        if code := self.train(config, run, before, again=again):
            raise RuntimeError(f"{run.name} ended with {code}: {told(run)}")

    def finish(self, config: Config, run: Path) -> str:
        """Resume a run, or start it again if nothing was saved; return the problem, if any."""
        code = self.train(config, run, again=resume_or_overwrite(run))
        return f"{run.name}: exit code {code}: {told(run)}" if code else ""


def _train(
    config: Config,
    corpus: Corpus,
    run: Path,
    before: Before | None,
    again: Mode,
) -> None:
    tqdm.set_lock(threading.RLock())  # tqdm's own are semaphores, which a kill leaves behind
    os.dup2(os.open(log_of(run), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), 2)
    if before:
        before()
    try:
        train_run(config, corpus, run, again)
    except UsageError as error:
        if "is finished" not in str(error):  # it was killed after its last checkpoint
            raise


def resume_or_overwrite(run: Path) -> Mode:
    """Return how to continue a killed run: overwrite it if nothing was saved."""
    return "resume" if has_checkpoint(run) else "overwrite"


def ended(process: ForkServerProcess, seconds: float = HANGS_S) -> int:
    """Kill a process after `seconds`; return its exit code, negative after a signal."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
    code = process.exitcode
    process.close()
    return 0 if code is None else code


def log_of(run: Path) -> Path:
    """Return the file for the stderr of a run's processes."""
    return run.with_name(f"{run.name}.stderr")


def stderr(run: Path) -> str:
    """Return the stderr of a run's last process."""
    return log_of(run).read_text(errors="replace")


def told(run: Path) -> str:
    """Return the last line of a run's stderr."""
    return (stderr(run).strip().splitlines() or ["nothing said"])[-1]


def hash_of(data: CheckpointData) -> str:
    """Return one hash of all weights."""
    digest = hashlib.sha256()
    for name, array in sorted(data.weights.items()):
        digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()


def bits(run: Path) -> dict[str, Any]:
    """Return everything in a run that kills may not change."""
    _, state = read_to_resume(run, read_index(run / "checkpoints").last)
    return {
        "last": hash_of(read_checkpoint(run, "last")),
        "best": hash_of(read_checkpoint(run, "best")),
        "optimizer": {name: array.tobytes() for name, array in state.tensors.items()},
        "metrics": metrics(run),
    }


def differences(run: Path, unkilled: dict[str, Any]) -> list[str]:
    """Return the differences from the bits of an unkilled run."""
    try:
        found = bits(run)
    except GPTError as error:
        return [f"{run.name}: {error}"]
    names = [name for name, value in unkilled.items() if found[name] != value]
    return [f"{run.name}: {', '.join(names)}"] if names else []


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the records without times."""
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    clocks = ("elapsed_s", "chars_per_s")
    return [{k: v for k, v in json.loads(line).items() if k not in clocks} for line in lines]


def remove(run: Path) -> None:
    """Remove a run and its log."""
    shutil.rmtree(run, ignore_errors=True)
    log_of(run).unlink(missing_ok=True)
