"""Peak memory of commands: no more than the estimate, or than is free. It needs Linux."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.frame import GPT, dry_run, settings
from gpt import api
from gpt.config.schema import Config
from gpt.model.shapes import parameter_shapes
from gpt.runs.format import CheckpointData, TrainingState
from gpt.runs.write import write_checkpoint
from gpt.text.vocabulary import Vocabulary

SHORT = ["train.steps=12", "train.eval_every=12", "train.warmup_steps=2"]
TRAINED_HERE = ("quickstart", "shakespeare_fast", "shakespeare_cpu", "shakespeare_best", "classic")
SHIPPED = {  # changes that shorten a run without changing the memory of a step
    **dict.fromkeys(TRAINED_HERE, SHORT),
    "shakespeare_gpu": [*SHORT, "device=cpu", "train.steps=3", "train.eval_characters=20000"],
}
HUGE_BATCH = ["--set", "train.batch_size=1000000000"]
LITTLE_BYTES = 2**30  # limit of the control group, and of a refused request


def peak(*command: str, before: str = "") -> tuple[int, int, float, str]:
    """Run a command in a shell after `before`; return exit code, peak bytes, seconds and stderr."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as err:
        shell = ["sh", "-c", f'{before}exec "$@"', "sh", *command]
        process = subprocess.Popen(shell, stdout=subprocess.DEVNULL, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        message = err.read().decode()
    return process.returncode, usage.ru_maxrss * 1024, time.perf_counter() - began, message


def hostile_run(folder: Path) -> Path:
    """Write a run of 562 kB with valid hashes, whose shapes would need 11 GB."""
    sizes = {"n_layer": 500, "T": 2**23, "head_size": 2, "C": 1, "n_head": 1}
    config = Config.model_validate({"model": sizes})
    vocabulary = Vocabulary("\n abc")
    shapes = parameter_shapes(config.model, len(vocabulary))
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    data = CheckpointData(1, config, vocabulary, weights, best_step=1)
    folder.mkdir()
    write_checkpoint(folder, data, TrainingState({}, {}))
    return folder


@contextmanager
def control_group(limit: int) -> Iterator[str]:
    """Return the shell command that joins a new control group, or nothing if none can be made."""
    root = Path("/sys/fs/cgroup/memory")  # version 1
    name = "memory.limit_in_bytes" if root.exists() else "memory.max"
    group = (root if root.exists() else Path("/sys/fs/cgroup")) / f"gpt-memory-{os.getpid()}"
    try:
        group.mkdir()
        (group / name).write_text(str(limit))
    except OSError as error:
        print(f"no control group here: {error}", file=sys.stderr)
        yield ""
    else:
        yield f"echo $$ > {group}/cgroup.procs; "
    finally:
        if group.exists():
            group.rmdir()


def memory() -> dict[str, Any]:
    """Compare the peak memory of runs of shipped configs with the estimate of --dry-run."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, changes in SHIPPED.items():
            estimate = dry_run(name, changes)["peak_bytes"]
            command = [*GPT, "train", "--config", name, *settings(changes)]
            code, taken, _, message = peak(*command, "--run-dir", str(Path(folder, name)))
            assert code == 0, message
            found[name] = {"estimated_mb": round(estimate / 1e6), "taken_mb": round(taken / 1e6)}
            found[name]["ratio"] = round(taken / estimate, 2)
    return found


def eval_memory(run: Path) -> dict[str, int]:
    """Measure the peak MB of `gpt eval --html` for 1, 10 and 100 MB of text.

    100 MB take minutes, also with a small `run`.
    """
    characters = api.load(run).vocabulary.characters
    part = "".join(np.random.default_rng(1).choice([*characters], size=1_000_000))
    found = {}
    for megabytes in (1, 10, 100):
        with tempfile.TemporaryDirectory() as folder:
            file, page = Path(folder, "text.txt"), Path(folder, "page.html")
            file.write_text(megabytes * part, "utf-8")
            code, taken, _, message = peak(*GPT, "eval", str(run), str(file), "--html", str(page))
            assert code == 0, message
        found[f"{megabytes}_mb"] = round(taken / 1e6)
    return found


def refusals() -> dict[str, str]:
    """Check that hostile requests are refused at once, with one message and little memory.

    They are repeated with `ulimit -v`, and in a control group if one can be made.
    """
    found = {}
    with tempfile.TemporaryDirectory() as name, control_group(LITTLE_BYTES) as join:
        run_dir = str(hostile_run(Path(name, "run")))
        new = ["--run-dir", str(Path(name, "new"))]
        page = ["--out", str(Path(name, "page.html"))]
        requests = {
            "batch_size 1e9, --dry-run": ["train", "--dry-run", *HUGE_BATCH],
            "C 1e6": ["train", "--set", "model.C=1000000", *new],
            "500 layers, T 2^23: 1e9 samples": ["sample", run_dir, "--num-samples", "1000000000"],
            "the same: attend to 60,000": ["attend", run_dir, "--text", "a" * 60_000, *page],
            "the same: explain follow": ["explain", "follow", "--run", run_dir],
        }
        limits = {"": "", "ulimit -v 8 GB: ": f"ulimit -v {8 * 2**20}; "}
        if join:
            limits["1 GiB in a group: "] = join
        for limit, before in limits.items():
            for title, arguments in requests.items():
                code, taken, seconds, message = peak(*GPT, *arguments, before=before)
                lines = [line for line in message.splitlines() if line.startswith("gpt: ")]
                # exit code 0: the lessons show a few characters, whatever T is
                fine = code in (0, 1, 2) and len(lines) == bool(code) and taken < LITTLE_BYTES
                fine &= "Traceback" not in message
                result = f"exit {code}, {taken / 1e6:,.0f} MB, {seconds:.1f} s"
                found[f"{limit}{title}"] = result if fine else f"FAILED: {result}"
    return found
