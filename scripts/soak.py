"""Kill runs and damage files, many times over: nothing may be lost, and nothing may crash.

    python scripts/soak.py                    100 kills, 6,000 damaged files
    python scripts/soak.py --kills 1000 --files 50000 --seed 7

Prints one JSON object; the exit code is 1 if anything was lost or crashed. Linux and macOS.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gpt.config.schema import Config
from gpt.errors import GPTError
from gpt.runs.checkpoint import (
    FILES,
    INDEX,
    MANIFEST,
    manifest_of,
    read_checkpoint,
    read_index,
    read_to_resume,
    step_folder,
)
from gpt.runs.model import load_model
from gpt.runs.recovery import recover
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.sources import open_text
from gpt.training.trainer import train

CPU = torch.device("cpu")
DISK: list[tuple[Any, str]] = [  # what a checkpoint is written with
    (os, "fsync"),
    (shutil, "rmtree"),
    (Path, "open"),
    (Path, "rename"),
    (Path, "replace"),
    (Path, "unlink"),
    (Path, "mkdir"),
]


def tiny(steps: int) -> Config:
    """A config whose steps take milliseconds and whose checkpoints are many."""
    return Config.model_validate(
        {
            "device": "cpu",
            "model": {"T": 13, "C": 24, "n_layer": 2, "n_head": 3, "head_size": 10},
            "train": {
                "steps": steps,
                "batch_size": 3,
                "checkpoint_every": 3,
                "eval_every": 50,
                "log_every": 1,
                "sample_length": 0,
            },
        }
    )


# --- kills ---


def _child(config: Config, corpus: Corpus, run: Path, resume: bool, operations: int) -> None:
    """Train; with `operations`, die at that disk operation of saving."""
    torch.set_num_threads(1)
    left = operations

    def deadly(operation: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*arguments, **named)

        return wrapped

    if operations:
        for owner, name in DISK:
            setattr(owner, name, deadly(getattr(owner, name)))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    train(config, corpus, run, resume=resume)


def killed_runs(folder: Path, corpus: Corpus, kills: int, seed: int) -> dict[str, Any]:
    """Kill one run so many times, three in ten of them while it saves; compare with one unkilled.

    Both in `folder`. Lost are runs that cannot be resumed, or that end with other bits.
    """
    # of a server that has torch, and none of autograd's threads, which do not survive a fork
    draws, context = random.Random(seed), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gpt.training.trainer"])
    config, run, unkilled = tiny(steps=40 * kills), folder / "killed", folder / "unkilled"
    counted: Counter[str] = Counter()
    while counted["kills"] < kills:
        resume = any((run / "checkpoints").glob("step-*"))
        if not resume:
            shutil.rmtree(run, ignore_errors=True)
        saving = counted["kills"] % 10 < 3
        operations = draws.randint(1, 120) if saving else 0
        child = context.Process(target=_child, args=(config, corpus, run, resume, operations))
        child.start()
        child.join(60 if saving else draws.expovariate(1 / 0.25))
        if child.exitcode is None:
            child.kill()
            child.join()
        if child.exitcode == -signal.SIGKILL:
            counted["kills"] += 1
            counted["while saving"] += saving
        else:
            counted["ended" if child.exitcode == 0 else "not resumed"] += 1
            break
    child = context.Process(target=_child, args=(config, corpus, run, True, 0))
    child.start()
    child.join()
    counted["not resumed"] += child.exitcode != 0
    torch.set_num_threads(1)
    reference = context.Process(target=_child, args=(config, corpus, unkilled, False, 0))
    reference.start()
    reference.join()
    same = {
        "weights": weights(run) == weights(unkilled),
        "optimizer": optimizer(run) == optimizer(unkilled),
        "metrics": metrics(run) == metrics(unkilled),
    }
    return {**counted, "steps": config.train.steps, "same": same}


def weights(run: Path) -> dict[str, bytes]:
    """The bits of the last checkpoint's weights."""
    data = read_checkpoint(run, "last")
    return {name: array.tobytes() for name, array in data.weights.items()}


def optimizer(run: Path) -> dict[str, bytes]:
    """The bits of the optimizers' state."""
    _, state = read_to_resume(run, read_index(run / "checkpoints").last)
    return {name: array.tobytes() for name, array in state.tensors.items()}


def metrics(run: Path) -> list[dict[str, Any]]:
    """The records but for what differs from clock to clock."""
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    clocks = ("elapsed_s", "chars_per_s")
    return [{k: v for k, v in json.loads(line).items() if k not in clocks} for line in lines]


# --- damaged files ---


def damaged_files(folder: Path, run: Path, count: int, seed: int) -> dict[str, Any]:
    """Change checkpoint files in `count` ways, half with hashes to match, and read them.

    Each must be read, or refused with a GPTError, within seconds.
    """
    draws = random.Random(seed)
    outcomes: Counter[str] = Counter()
    crashes: list[str] = []
    copy = folder / "copy"
    shutil.copytree(run, copy)
    folder = copy / "checkpoints"
    place = step_folder(folder, read_index(folder).last)
    files = [*(place / name for name in (*FILES, MANIFEST)), folder / INDEX]
    contents = {path: path.read_bytes() for path in files}
    for number in range(count):
        path = draws.choice(files)
        path.write_bytes(mutate(contents[path], draws))
        if path.name in FILES and number % 2:
            (place / MANIFEST).write_bytes(
                manifest_of({name: (place / name).read_bytes() for name in FILES})
            )
        try:
            with within(seconds=20):
                read_all(copy)
            outcomes["read"] += 1
        except GPTError as error:
            outcomes[f"{type(error).__name__}: {kind_of(path.name, str(error))}"] += 1
        except BaseException as error:
            crashes.append(f"{path.name} {number}: {type(error).__name__}: {error}")
        for changed in (path, place / MANIFEST):
            changed.write_bytes(contents[changed])
    shutil.rmtree(copy)
    return {"files": count, "outcomes": dict(outcomes.most_common()), "crashes": crashes}


def read_all(run: Path) -> None:
    """All that reads a checkpoint: to sample from it, and to resume."""
    data = read_checkpoint(run, "last")
    load_model(data, CPU)
    read_to_resume(run, data.step)


def mutate(content: bytes, draws: random.Random) -> bytes:
    """Flip, cut, repeat, insert or exchange some bytes, or put others in place of a number."""
    changed = bytearray(content)
    for _ in range(draws.choice([1, 1, 1, 2, 8])):
        at = draws.randrange(min(len(changed), draws.choice([200, 2000, 10**9])) or 1)
        match draws.randrange(7):
            case 0:
                changed[at : at + 1] = bytes([draws.randrange(256)])
            case 1:
                del changed[at:]
            case 2:
                del changed[at : at + draws.randrange(1, 64)]
            case 3:
                changed[at:at] = changed[at : at + draws.randrange(1, 64)] * draws.randrange(1, 99)
            case 4:
                changed[at:at] = draws.randbytes(draws.randrange(1, 64))
            case 5:
                changed = bytearray(draws.randbytes(draws.randrange(64)))
            case 6:
                old = str(draws.choice([13, 24, 2, 3, 10, 0])).encode()
                new = draws.choice([b"-1", b"999999999999", b"0", b"1e400", b"null", b"[" * 5000])
                changed = bytearray(bytes(changed).replace(old, new, 1))
    return bytes(changed)


def kind_of(name: str, message: str) -> str:
    """The refusal without what differs from file to file."""
    for kind in ("SHA-256 differs", "cannot tell the last", "not a vocabulary", "expected finite"):
        if kind in message:
            return f"{name}: {kind}"
    return name


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raises TimeoutError if it takes longer."""

    def ring(number: int, frame: object) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    """Soak, print what happened, and exit with 1 if that was not nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--files", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * 99)
        corpus = load_corpus(open_text(str(folder / "text.txt")))
        kills = killed_runs(folder, corpus, asked.kills, asked.seed)
        recover(folder / "unkilled")
        files = damaged_files(folder, folder / "unkilled", asked.files, asked.seed)
    seconds = round(time.perf_counter() - began)
    print(json.dumps({"seconds": seconds, "kills": kills, "damage": files}, indent=2))
    lost = kills["not resumed"] or not all(kills["same"].values()) or files["crashes"]
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
