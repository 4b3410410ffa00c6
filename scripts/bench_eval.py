#!/usr/bin/env python3
"""Measure `gpt eval`.

    python scripts/bench_eval.py coverage             how often intervals contain the mean
    python scripts/bench_eval.py memory RUN           peak memory for 1, 10 and 100 MB of text
    python scripts/bench_eval.py page FILE            seconds in which Chromium opens a page
    python scripts/bench_eval.py speed RUN TEXT       CPU time, compared with that in training
    python scripts/bench_eval.py memorisation TEXT    copies by a normal and an overfitted run

TEXT is a file. For `memory`, use a RUN of a small model: 100 MB take minutes.
"""

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from gpt import api
from gpt.evaluation.evaluation_report import evaluate_text
from gpt.evaluation.intervals import BlockSums
from gpt.evaluation.loss import Units, evaluate
from gpt.evaluation.scored_text import ScoredText

LOAD_MILLISECONDS = (  # JavaScript
    "return performance.timing.loadEventEnd - performance.timing.navigationStart"
)
OVERFITTED_CHARACTERS = 20_000
OVERFITTED_SETTINGS = {"train.steps": 400}


def coverage() -> None:
    """Print how often intervals contain the mean of losses with a correlation of r^distance."""
    source = np.random.default_rng(1)
    for n in (10_000, 100_000, 1_000_000):
        for r in (0.0, 0.9, 0.99):
            contained, naive, times = 0, 0, 200
            reach = max(1, round(math.log(1e-3) / math.log(max(r, 1e-9))))
            kernel = r ** np.arange(reach)
            for _ in range(times):
                noise = source.exponential(size=n + reach) - 1
                losses = filtered(noise, kernel)[-n:]
                blocks = BlockSums(n)
                blocks.add(np.arange(n), losses.astype(np.float32))
                interval = blocks.interval()
                assert interval is not None
                contained += interval.low < 0 < interval.high
                naive += abs(losses.mean()) < 1.96 * losses.std() / math.sqrt(n)
            shares = f"{contained / times:.1%}; from deviation / sqrt(n): {naive / times:.1%}"
            print(f"{n:,} characters, r {r:g}, 95 % intervals: {shares}", flush=True)


def filtered(noise: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Return the convolution of two arrays of one dimension, computed by Fourier transforms."""
    size = len(noise) + len(kernel) - 1
    return np.fft.irfft(np.fft.rfft(noise, size) * np.fft.rfft(kernel, size), size)[: len(noise)]


def memory(run: str) -> None:
    """Print the peak memory of `gpt eval RUN`, as whole processes, for texts of growing size."""
    characters = api.load(run).vocabulary.characters
    source = np.random.default_rng(1)
    part = "".join(source.choice([*characters], size=1_000_000))
    for megabytes in (1, 10, 100):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "text.txt")
            with file.open("w", encoding="utf-8") as out:
                out.writelines(part for _ in range(megabytes))
            page = str(Path(folder, "page.html"))
            command = [sys.executable, "-m", "gpt", "eval", run, str(file), "--html", page]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            assert status == 0
            size = Path(page).stat().st_size / 1e6
        print(f"{megabytes} MB: {usage.ru_maxrss / 1e3:.0f} MB; page {size:.1f} MB", flush=True)


def page(file: str) -> None:
    """Print the time from opening a page of `gpt eval --html` to its load event, in Chromium."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("install chromium")
    options.add_argument("--headless=new")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium does not run as root otherwise
    driver = shutil.which("chromedriver") or sys.exit("install chromedriver")
    browser = Chrome(options=options, service=Service(driver))
    milliseconds = []
    for _ in range(5):
        browser.get(Path(file).resolve().as_uri())
        milliseconds.append(browser.execute_script(LOAD_MILLISECONDS))
    browser.quit()
    megabytes = Path(file).stat().st_size / 1e6
    print(f"{megabytes:.1f} MB: {statistics.median(milliseconds) / 1000:.2f} s, median of 5")


def speed(run: str, text: str) -> None:
    """Print the CPU time of scoring a text, divided by that of the evaluation in training."""
    model = api.load(run)
    vocabulary, T = model.vocabulary, model.config.model.T
    ids = vocabulary.encode(model.prepare(Path(text).read_text("utf-8"), drop_unknown=True))
    n = len(ids) - 1
    scored = ScoredText(text, ids, vocabulary, Units(n, n, n), 0, None)
    ways: dict[str, Callable[[], object]] = {
        "in training": lambda: evaluate(model.module, ids),
        "gpt eval": lambda: evaluate_text(model.module, scored),
        "gpt eval --html": lambda: evaluate_text(model.module, scored, surprise=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, work in ways.items():
            began = time.process_time()
            work()
            seconds[name].append(time.process_time() - began)
    reference = statistics.median(seconds["in training"])
    print(f"{n:,} characters, windows of {T:,}, medians of 5:")
    for name, each in seconds.items():
        median = statistics.median(each)
        print(f"{name}: {median:.2f} s of CPU time, {median / reference:.2f} times", flush=True)


def memorisation(text: str) -> None:
    """Print the shares of `gpt eval --memorisation` for a normal and an overfitted run.

    The normal run is shakespeare_cpu. The overfitted run trains shakespeare_fast on
    the first OVERFITTED_CHARACTERS, for many passes.
    """
    whole = Path(text).read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        short = Path(folder, "short.txt")
        short.write_text(whole[:OVERFITTED_CHARACTERS], "utf-8")
        runs = {
            "shakespeare_cpu": (text, {}),
            "shakespeare_fast": (str(short), OVERFITTED_SETTINGS),
        }
        for config, (source, settings) in runs.items():
            outcome = api.train(
                config, text=source, settings=settings, run_dir=Path(folder, config)
            )
            model = api.load(outcome.run, "last")
            report = api.evaluate(model, memorisation=True)
            print(f"{config}, loss {report.loss:.3f}: {report.memorisation}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["coverage", "memory", "page", "speed", "memorisation"])
    parser.add_argument("arguments", nargs="*")
    args = parser.parse_args()
    globals()[args.what](*args.arguments)
