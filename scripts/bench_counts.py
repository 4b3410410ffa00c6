#!/usr/bin/env python3
"""Measure what n-gram counts cost and what they bring.

    python scripts/bench_counts.py count TEXT                 seconds, memory and bytes of counting
    python scripts/bench_counts.py evaluation RUN TEXT        CPU time of counts in an evaluation
    python scripts/bench_counts.py sample RUN                 start-up and speed of sampling
    python scripts/bench_counts.py positions RUN TEXT         val loss by position in the window
    python scripts/bench_counts.py windows RUN TEXT           val loss in shorter windows
    python scripts/bench_counts.py repeats RUN TEXT           what samples repeat and what they copy

TEXT is a file; its val split is the last tenth. RUN is a run with `model.counts`. No other program
should run meanwhile.
"""

import argparse
import resource
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from gpt.api import load
from gpt.counts.experts import long_orders
from gpt.counts.long_contexts import index_contexts
from gpt.counts.ngram_counts import count_ngrams
from gpt.evaluation.loss import evaluate, scored_ids
from gpt.sampling.stopping import collect
from gpt.text.corpus import load_corpus
from gpt.text.sources import open_source

SAMPLES, SAMPLE_CHARACTERS = 16, 2000
REPEATED = (32, 64)  # characters of the substrings that are looked for
TEMPERATURES = (0.5, 0.8, 1.0)


def count(text: str) -> None:
    """Count the n-grams of the train split, as training does."""
    corpus = load_corpus(open_source(text))
    V = len(corpus.vocabulary)
    began = time.perf_counter()
    counts = count_ngrams(corpus.train, V, 8)
    contexts = index_contexts(corpus.train, V, long_orders(counts.order, V))
    seconds = time.perf_counter() - began
    entries = sum(map(len, counts.keys))
    arrays: list[np.ndarray] = [*counts.keys, *counts.counts]
    arrays += [contexts.places, contexts.reversed_ids]
    megabytes = sum(array.nbytes for array in arrays) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{len(corpus.train):,} characters in {seconds:.2f} s: {entries:,} n-grams and "
        f"{len(contexts.places):,} places, {megabytes:.1f} MB; peak memory of the process "
        f"{peak:.0f} MB"
    )


def evaluation(run: str, text: str) -> None:
    """Time an evaluation of the val split, at most 16 windows, with and without counts."""
    model = load(run)
    ids = scored_ids(val_of(text), model.vocabulary)[: 16 * model.config.model.T + 1]
    for name, mixture in (("network alone", None), ("with counts", model.checkpoint.mixture)):
        wall, cpu = [], []
        for _ in range(3):
            began, cpu_began = time.perf_counter(), time.process_time()
            evaluate(model.module, ids, model.vocabulary, mixture=mixture)
            wall.append(time.perf_counter() - began)
            cpu.append(time.process_time() - cpu_began)
        print(
            f"{name}: {sorted(wall)[1]:.1f} s, CPU {sorted(cpu)[1]:.1f} s for {len(ids) - 1:,} ids "
            f"(medians of 3)"
        )


def sample(run: str) -> None:
    """Time `gpt sample` with and without counts, as whole processes and per character."""
    plain = load(run)
    without = replace(plain.checkpoint, mixture=None)
    for name, checkpoint in (("with counts", plain.checkpoint), ("without", without)):
        model = load(run)
        model.checkpoint = checkpoint
        for num_samples in (1, 64):
            times = []
            for _ in range(3):
                began = time.perf_counter()
                chunks = model.sample("\n", num_samples=num_samples, length=SAMPLE_CHARACTERS // 2)
                characters = sum(len(chunk.text) for chunk in chunks)
                times.append(time.perf_counter() - began)
            pace = characters / sorted(times)[1]
            print(f"{name}, {num_samples} at once: {pace:.0f} characters/s (median of 3)")
    times = []
    for _ in range(5):
        began = time.perf_counter()
        command = [sys.executable, "-m", "gpt", "sample", run, "--length", "1"]
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    print(f"gpt sample --length 1: {sorted(times)[2]:.2f} s (median of 5)")


def positions(run: str, text: str) -> None:
    """Print the val loss by position in the window, in powers of two."""
    model, val = load(run), val_of(text)
    T = model.config.model.T
    costs = np.zeros(T)
    times = np.zeros(T)
    ids = model.vocabulary.encode(val)
    for start in range(0, len(ids) - 1, T):
        part = val[start : start + T + 1]
        targets = ids[start + 1 : start + T + 1].astype(int)
        log_p = model.logits(part[:-1] if len(part) == T + 1 else part).log_softmax(-1).numpy()
        nats = -log_p[np.arange(len(targets)), targets]
        costs[: len(nats)] += nats
        times[: len(nats)] += 1
    edges = [0, *(2**i for i in range(4, T.bit_length()))]
    for low, high in pairwise(edges):
        if times[low:high].any():
            print(f"{low + 1} to {high}: {costs[low:high].sum() / times[low:high].sum():.4f}")


def windows(run: str, text: str) -> None:
    """Print the val loss in windows of 512 characters and more."""
    model, val = load(run), val_of(text)
    ids, mixture = scored_ids(val, model.vocabulary), model.checkpoint.mixture
    assert mixture is not None
    T = model.config.model.T
    for window in sorted({min(512, T), min(4096, T), T}):
        loss = evaluate(model.module, ids, model.vocabulary, mixture=replace(mixture, T=window))
        print(f"T {window}: {loss:.4f} nats per id")


def repeats(run: str, text: str) -> None:
    """Print how much samples repeat themselves and copy the train split, and how much val does."""
    whole = Path(text).read_text("utf-8")
    train, val = whole[: int(0.9 * len(whole))], val_of(text)
    model = load(run)
    pieces = [val[i : i + SAMPLE_CHARACTERS] for i in range(0, len(val), SAMPLE_CHARACTERS)]
    print(f"val: {described(pieces[:SAMPLES], train)}")
    for counted in (True, False):
        if not counted:
            model.checkpoint = replace(model.checkpoint, mixture=None)
        for temperature in TEMPERATURES:
            rules = {"temperature": temperature}
            chunks = model.sample(
                "\n", num_samples=SAMPLES, length=SAMPLE_CHARACTERS, seed=1, rules=rules
            )
            texts = [sample.text for sample in collect(chunks, ["\n"] * SAMPLES)]
            name = "counts" if counted else "network alone"
            print(f"{name}, temperature {temperature}: {described(texts, train)}")


def described(texts: list[str], train: str) -> str:
    """Return the shares of substrings that occur earlier in the text, and in `train`."""
    shares = []
    for n in REPEATED:
        known = {train[i : i + n] for i in range(len(train) - n + 1)}
        repeated = copied = total = 0
        for text in texts:
            seen: set[str] = set()
            for i in range(len(text) - n + 1):
                part = text[i : i + n]
                repeated += part in seen
                copied += part in known
                total += 1
                seen.add(part)
        shares.append(f"{n}: repeated {repeated / total:.2%}, in train {copied / total:.2%}")
    return "; ".join(shares)


def val_of(text: str) -> str:
    """Return the val split of a text file."""
    whole = Path(text).read_text("utf-8")
    return whole[int(0.9 * len(whole)) :]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", choices=["count", "evaluation", "sample", "positions", "windows", "repeats"]
    )
    parser.add_argument("arguments", nargs="+")
    args = parser.parse_args()
    globals()[args.what](*args.arguments)
