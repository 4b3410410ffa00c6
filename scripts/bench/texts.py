"""Time and memory of preparing a text."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.frame import text_or_tinyshakespeare
from bench.peers import NanoGPT

SIZES = {"100_mb": 10**8, "1_gb": 10**9, "2_gb": 2 * 10**9}
PEER_SIZE = 10**8  # nanoGPT holds a list of ids: for 1 GB it needs too much memory
REPEATS = 3

PREPARE = """
import json, sys, time
import filelock, numpy, tqdm.auto
from pathlib import Path
from gpt.text.corpus import load_corpus
from gpt.reading.sources import open_source
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
before, began = peak(), time.perf_counter()
corpus = load_corpus(open_source(sys.argv[1]))
took = time.perf_counter() - began
print(json.dumps({"s": took, "mib_over_imports": peak() - before, "V": len(corpus.vocabulary)}))
"""


def preparation(text: Path | None = None, nanogpt: Path | None = None) -> dict[str, Any]:
    """Measure time and memory of preparing a text of each size, and of finding it in the cache.

    `mb_per_s` is the median of REPEATS. nanoGPT's prepare.py runs in turn, if there is a checkout.
    """
    peer = NanoGPT(nanogpt, text_or_tinyshakespeare(None)) if nanogpt else None
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for name, size in SIZES.items():
            path = _repeated(text_or_tinyshakespeare(text), size, Path(folder, "text.txt"))
            runs, again, theirs = [], [], []
            for repeat in range(REPEATS if size <= 10**9 else 1):
                cache = {"XDG_CACHE_HOME": str(Path(folder, f"cache-{repeat}").absolute())}
                runs.append(_prepare(path, cache))
                again.append(_prepare(path, cache)["s"])
                subprocess.run(["rm", "-r", cache["XDG_CACHE_HOME"]], check=True)
                if peer and size == PEER_SIZE:
                    theirs.append(peer.prepare(path))
            taken = statistics.median(run["s"] for run in runs)
            found[name] = {
                "s": round(taken, 2),
                "mb_per_s": round(size / taken / 1e6),
                "mib_over_imports": round(max(run["mib_over_imports"] for run in runs)),
                "distinct": runs[0]["V"],
                "from_the_cache_s": round(statistics.median(again), 2),
            }
            if theirs:
                found[name]["nanogpt_s"] = round(statistics.median(theirs), 2)
            path.unlink()
    return found


def _repeated(text: Path, size: int, path: Path) -> Path:
    """Write a file of about `size` bytes: the text, repeated."""
    content = text.read_bytes()
    with path.open("wb") as file:
        for start in range(0, size, len(content)):
            part = content[: size - start]
            file.write(part.decode(errors="ignore").encode())  # without half a character at the end
        file.flush()
        os.fsync(file.fileno())
    time.sleep(1)  # until the disk is idle
    return path


def _prepare(path: Path, environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-c", PREPARE, str(path)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | environment
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result
