#!/usr/bin/env python3
"""Measure `gpt serve`: characters per second of several clients, and requests that get lost.

    scripts/bench_serve.py [RUN]

Without RUN, the model is untrained, with the shape of nanoGPT's CPU recipe and no counts. The
server computes with one thread. Its CPU time is also measured, because other programs may use the
machine.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import psutil
from bench_sampling import SHAPES, untrained_run

CHARACTERS = 500  # length of each text
CLIENTS = (1, 2, 4, 8, 16)
REPEATS = 3
SIMULTANEOUS = 50  # clients of the last measurement, of which none may be lost
TIMEOUT_S = 600  # seconds after which a request counts as lost


@contextlib.contextmanager
def serving(run: str) -> Iterator[tuple[str, psutil.Process]]:
    """Start `gpt serve`; yield its address and its process."""
    command = [sys.executable, "-m", "gpt", "serve", run, "--port", "0", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.terminate()


def generate(url: str, seed: int) -> int:
    """Let the server generate a text; return its length in characters."""
    body = json.dumps({"prompt": "A", "max_tokens": CHARACTERS, "seed": seed}).encode()
    with urllib.request.urlopen(f"{url}/v1/completions", body, TIMEOUT_S) as response:
        return len(json.load(response)["choices"][0]["text"])


def paces(url: str, server: psutil.Process, clients: int) -> tuple[float, float]:
    """Return the characters that `clients` receive together per second, and per CPU second."""

    def cpu_seconds() -> float:
        times = server.cpu_times()
        return times.user + times.system

    began, cpu = time.perf_counter(), cpu_seconds()
    with ThreadPoolExecutor(clients) as pool:
        total = sum(pool.map(generate, [url] * clients, range(clients)))
    return total / (time.perf_counter() - began), total / (cpu_seconds() - cpu)


def measure(url: str, server: psutil.Process) -> None:
    """Print the figures of one server."""
    paces(url, server, 1)  # loads what the first request needs
    measured = {clients: list[tuple[float, float]]() for clients in CLIENTS}
    for _ in range(REPEATS):  # side by side
        for clients in CLIENTS:
            measured[clients].append(paces(url, server, clients))
    medians = {clients: [*map(median, zip(*measured[clients], strict=True))] for clients in CLIENTS}
    for clients, (per_second, per_cpu_second) in medians.items():
        gain, cpu_gain = per_second / medians[1][0], per_cpu_second / medians[1][1]
        print(
            f"{clients:>3} clients: {per_second:7,.0f} characters/s, {gain:4.1f} times one client; "
            f"{per_cpu_second:7,.0f} per CPU second, {cpu_gain:4.1f} times"
        )
    with ThreadPoolExecutor(SIMULTANEOUS) as pool:
        lengths = list(pool.map(generate, [url] * SIMULTANEOUS, range(SIMULTANEOUS)))
    complete = lengths.count(CHARACTERS)
    print(f"{SIMULTANEOUS} clients at once: {complete} got their {CHARACTERS} characters")


def main() -> None:
    """Measure the run that is named on the command line, or an untrained one."""
    with contextlib.ExitStack() as stack:
        runs = sys.argv[1:2] or [str(stack.enter_context(untrained_run(SHAPES["small"])))]
        measure(*stack.enter_context(serving(runs[0])))


if __name__ == "__main__":
    main()
