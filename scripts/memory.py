"""Show that no command takes more memory than it says, or than there is.

    python scripts/memory.py

What a run takes is the most that its process held (ru_maxrss), against what `--dry-run` said. The
hostile requests are to be refused in one message, at once, also where `ulimit -v` or a control
group leaves little memory. Prints one table; the exit code is 1 if one is not as it should be.
Linux; the control group needs the right to make one.
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
SHIPPED = {  # changes that shorten a run and leave the memory of a step what it is
    "quickstart": SHORT,
    "shakespeare_fast": SHORT,
    "shakespeare_cpu": SHORT,
    "shakespeare_best": SHORT,
    "classic": SHORT,
    "shakespeare_gpu": [*SHORT, "device=cpu", "train.steps=3", "train.eval_characters=20000"],
}
MOST_OVER = 1.2  # times what was said
HUGE_BATCH = ["--set", "train.batch_size=1000000000"]
LITTLE = 2**30  # bytes: what a control group leaves


def run(*command: str, before: str = "") -> tuple[int, int, float, str]:
    """Exit code, most bytes held, seconds and stderr of a command, in a shell after `before`."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as err:
        shell = ["sh", "-c", f'{before}exec "$@"', "sh", *command]
        process = subprocess.Popen(shell, stdout=subprocess.DEVNULL, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        told = err.read().decode()
    return process.returncode, usage.ru_maxrss * 1024, time.perf_counter() - began, told


def hostile_run(folder: Path) -> Path:
    """A run of 562 kB with right hashes, whose shapes asked for 11 GB."""
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
    """What a shell does to join a group with so much memory; nothing where none can be made."""
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
    """Each shipped config: what was said, what was taken."""
    with tempfile.TemporaryDirectory() as folder:
        for name, changes in SHIPPED.items():
            command = [*GPT, "train", "--config", name]
            command += [part for change in changes for part in ("--set", change)]
            dry = [*command, "--dry-run", "--json"]
            said = json.loads(subprocess.run(dry, check=True, capture_output=True).stdout)
            code, taken, _, told = run(*command, "--run-dir", str(Path(folder, name)))
            assert code == 0, told
            ratio = taken / said["peak_bytes"]
            told = f"said {said['peak_bytes'] / 1e6:,.0f} MB, took {taken / 1e6:,.0f} MB"
            yield name, f"{told}: {ratio:.2f}", ratio <= MOST_OVER


def hostile() -> Iterator[tuple[str, str, bool]]:
    """Each hostile request, as it is and with little memory: refused, and what that took."""
    with tempfile.TemporaryDirectory() as name, control_group(LITTLE) as join:
        run_dir = str(hostile_run(Path(name, "run")))
        new = ["--run-dir", str(Path(name, "new"))]
        page = ["--out", str(Path(name, "page.html"))]
        requests = {
            "batch_size 1e9, --dry-run": ["train", "--dry-run", *HUGE_BATCH],
            "C 1e6": ["train", "--set", "model.C=1000000", *new],
            "500 layers, T 2^23: 1e9 samples": ["sample", run_dir, "--num-samples", "1000000000"],
            "the same: attend to 60,000": ["attend", run_dir, "--text", "a" * 60_000, *page],
            "the same: explain scaling": ["explain", "scaling", "--run", run_dir],
        }
        limits = {"": "", "ulimit -v 8 GB: ": f"ulimit -v {8 * 2**20}; "}
        if join:
            limits["1 GiB in a group: "] = join
        for limit, before in limits.items():
            for title, arguments in requests.items():
                code, taken, seconds, told = run(*GPT, *arguments, before=before)
                lines = [line for line in told.splitlines() if line.startswith("gpt: ")]
                # what the lessons show is cut to a few characters, whatever T is
                fine = code in (0, 1, 2) and len(lines) == bool(code) and taken < LITTLE
                result = f"exit {code}, {taken / 1e6:,.0f} MB, {seconds:.1f} s"
                yield f"{limit}{title}", result, fine and "Traceback" not in told


def main() -> None:
    """Print the table."""
    failed = False
    for part in (shipped, hostile):
        for title, result, fine in part():
            print(f"{title:<52} {result}{'' if fine else '   NOT AS IT SHOULD BE'}", flush=True)
            failed |= not fine
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
