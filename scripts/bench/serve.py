"""Characters per second that clients of `gpt serve` receive, and requests that get lost."""

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

from bench.frame import GPT, SHAPES, in_turn, untrained_run

CHARACTERS = 500  # length of each text
REPEATS = 3
SIMULTANEOUS = 50  # clients of the last measurement, of which none may be lost
TIMEOUT_S = 600  # seconds after which a request counts as lost


def serve(run: Path | None = None) -> dict[str, float]:
    """Measure the pace of one client, and count the clients of 50 that get their whole text.

    The server computes with one thread. Without `run`, the model is untrained, with the shape of
    nanoGPT's CPU recipe.
    """
    with contextlib.ExitStack() as stack:
        path = run or stack.enter_context(untrained_run(SHAPES["small"]))
        url = stack.enter_context(_serving(path))
        taken = in_turn({"": partial(_generate, url, 1)}, REPEATS, warmup=1)[""]
        with ThreadPoolExecutor(SIMULTANEOUS) as pool:
            lengths = [*pool.map(partial(_generate, url), range(SIMULTANEOUS))]
    return {
        "chars_per_s": round(CHARACTERS / median(taken)),
        f"complete_of_{SIMULTANEOUS}": lengths.count(CHARACTERS),
    }


@contextlib.contextmanager
def _serving(run: Path) -> Iterator[str]:
    """Start `gpt serve`; yield its address."""
    command = [*GPT, "serve", str(run), "--port", "0", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _generate(url: str, seed: int) -> int:
    """Request a text from the server; return its length in characters."""
    body = json.dumps({"prompt": "A", "max_tokens": CHARACTERS, "seed": seed}).encode()
    with urllib.request.urlopen(f"{url}/v1/completions", body, TIMEOUT_S) as response:
        return len(json.load(response)["choices"][0]["text"])
