"""Check that no command takes more memory than its estimate, or than is free.

    python scripts/memory.py

The peak memory of a run (ru_maxrss) is compared with the estimate of `--dry-run`. Hostile requests
must be refused at once, with one message, also when `ulimit -v` or a control group leaves little
memory. Prints one table; the exit code is 1 if a check fails. It needs Linux, and for the control
group the permission to make one.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gpt.config.schema import Config
from gpt.model.shapes import parameter_shapes
from gpt.runs.format import CheckpointData, TrainingState
from gpt.runs.write import write_checkpoint
from gpt.text.vocabulary import Vocabulary

GPT = [sys.executable, "-m", "gpt"]
SHORT = ["train.steps=12", "train.eval_every=12", "train.warmup_steps=2"]
SHIPPED = {  # changes that shorten a run without changing the memory of a step
    "quickstart": SHORT,
    "shakespeare_fast": SHORT,
    "shakespeare_cpu": SHORT,
    "shakespeare_best": SHORT,
    "classic": SHORT,
    "shakespeare_gpu": [*SHORT, "device=cpu", "train.steps=3", "train.eval_characters=20000"],
}
LARGEST_RATIO = 1.2  # largest accepted ratio of peak memory to its estimate
HUGE_BATCH = ["--set", "train.batch_size=1000000000"]
LITTLE_BYTES = 2**30  # memory limit of the control group, in bytes


def run(*command: str, before: str = "") -> tuple[int, int, float, str]:
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


def shipped() -> Iterator[tuple[str, str, bool]]:
    """Yield a title, a result and its success for each shipped config."""
    with tempfile.TemporaryDirectory() as folder:
        for name, changes in SHIPPED.items():
            command = [*GPT, "train", "--config", name]
            command += [part for change in changes for part in ("--set", change)]
            dry = [*command, "--dry-run", "--json"]
            estimate = json.loads(subprocess.run(dry, check=True, capture_output=True).stdout)
            code, taken, _, message = run(*command, "--run-dir", str(Path(folder, name)))
            assert code == 0, message
            ratio = taken / estimate["peak_bytes"]
            sizes = f"{estimate['peak_bytes'] / 1e6:,.0f} MB estimated, {taken / 1e6:,.0f} MB taken"
            yield name, f"{sizes}: {ratio:.2f}", ratio <= LARGEST_RATIO


def hostile() -> Iterator[tuple[str, str, bool]]:
    """Yield a title, a result and its success for each hostile request, which must be refused."""
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
                code, taken, seconds, message = run(*GPT, *arguments, before=before)
                lines = [line for line in message.splitlines() if line.startswith("gpt: ")]
                # exit code 0: the lessons show a few characters, whatever T is
                fine = code in (0, 1, 2) and len(lines) == bool(code) and taken < LITTLE_BYTES
                result = f"exit {code}, {taken / 1e6:,.0f} MB, {seconds:.1f} s"
                yield f"{limit}{title}", result, fine and "Traceback" not in message


def main() -> None:
    """Print the table."""
    failed = False
    for part in (shipped, hostile):
        for title, result, fine in part():
            print(f"{title:<52} {result}{'' if fine else '   FAILED'}", flush=True)
            failed |= not fine
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
