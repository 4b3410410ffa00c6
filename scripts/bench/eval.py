"""Speed and memory of `gpt eval`."""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.browser import browser
from bench.frame import GPT, in_turn, text_or_tinyshakespeare
from gpt import api
from gpt.evaluation.evaluation_report import evaluate_text
from gpt.evaluation.loss import Units, evaluate
from gpt.evaluation.scored_text import ScoredText

LOAD_MILLISECONDS = (  # JavaScript
    "return performance.timing.loadEventEnd - performance.timing.navigationStart"
)


def eval_memory(run: Path) -> dict[str, int]:
    """Measure the peak MB of `gpt eval --html` for 1, 10 and 100 MB of text.

    100 MB take minutes, also with a small `run`.
    """
    characters = api.load(run).vocabulary.characters
    part = "".join(np.random.default_rng(1).choice([*characters], size=1_000_000))
    found = {}
    for megabytes in (1, 10, 100):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "text.txt")
            file.write_text(megabytes * part, "utf-8")
            page = str(Path(folder, "page.html"))
            command = [*GPT, "eval", str(run), str(file), "--html", page]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            assert status == 0
        found[f"{megabytes}_mb"] = round(usage.ru_maxrss / 1e3)
    return found


def eval_page(page: Path) -> dict[str, float]:
    """Measure the seconds from opening a page of `gpt eval --html` to its load event."""
    milliseconds = []
    with browser() as chrome:
        for _ in range(5):
            chrome.get(page.resolve().as_uri())
            milliseconds.append(chrome.execute_script(LOAD_MILLISECONDS))
    return {"mb": page.stat().st_size / 1e6, "s": statistics.median(milliseconds) / 1000}


def eval_speed(run: Path, text: Path | None = None) -> dict[str, Any]:
    """Measure the CPU time of scoring `text`, divided by that of the evaluation in training."""
    model, path = api.load(run), text_or_tinyshakespeare(text)
    vocabulary = model.vocabulary
    ids = vocabulary.encode(model.prepare(path.read_text("utf-8"), drop_unknown=True))
    n = len(ids) - 1
    scored = ScoredText(str(path), ids, vocabulary, Units(n, n, n), 0, None)
    works: dict[str, Callable[[], object]] = {
        "in_training": partial(evaluate, model.module, ids, vocabulary),
        "gpt_eval": partial(evaluate_text, model.module, scored),
        "gpt_eval_html": partial(evaluate_text, model.module, scored, surprise=True),
    }
    taken = in_turn(works, 5, clock=time.process_time)
    medians = {name: statistics.median(each) for name, each in taken.items()}
    ratios = {name: round(each / medians["in_training"], 2) for name, each in medians.items()}
    return {"characters": n, "cpu_s": round(medians["in_training"], 2), **ratios}
