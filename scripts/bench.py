"""Measure what the README claims, as a user meets it: whole processes, from start to exit.

    python scripts/bench.py startup quickstart shakespeare threads     (or some)

Prints one JSON object. Times on a shared machine vary: quote medians, and ratios taken in one call.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
TARGET = 1.88  # nanoGPT's val loss on tinyshakespeare with its CPU recipe, by its README


def seconds(*command: str, repeats: int = 1) -> float:
    """Median wall-clock time of a command that must succeed."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return round(statistics.median(times), 3)


def startup() -> dict[str, Any]:
    """Help and a config error against the imports they cannot do without."""
    wrong = f"import sys; from gpt.cli import main; sys.argv = {['gpt', 'train', '--set', 'x=1']}"
    caught = "\ntry:\n    main()\nexcept SystemExit as error:\n    assert error.code == 2"
    return {
        "import_typer_s": seconds(sys.executable, "-c", "import typer", repeats=7),
        "gpt_help_s": seconds(sys.executable, "-m", "gpt", "--help", repeats=7),
        "gpt_config_error_s": seconds(sys.executable, "-c", wrong + caught, repeats=7),
        "import_torch_s": seconds(sys.executable, "-c", "import torch", repeats=3),
    }


def run_of(config: str, *text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train a shipped config in a scratch folder: its outcome with `wall_s`, and its metrics."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / config)
        command = [sys.executable, "-m", "gpt", "train", *text, "--json", "--run-dir", run]
        began = time.perf_counter()
        done = subprocess.run(
            [*command, "--config", str(CONFIGS / f"{config}.yaml")], check=True, capture_output=True
        )
        wall = time.perf_counter() - began
        lines = (Path(run) / "metrics.jsonl").read_text("utf-8").splitlines()
    outcome = json.loads(done.stdout)
    kept = {key: outcome[key] for key in ("step", "val_loss", "best_val_loss")}
    return {"wall_s": round(wall, 1), **kept}, [json.loads(line) for line in lines]


def quickstart() -> dict[str, Any]:
    """The README's first command, without the installation."""
    return run_of("quickstart")[0]


def shakespeare() -> dict[str, Any]:
    """tinyshakespeare on the CPU; when an evaluation first beat the target."""
    outcome, records = run_of("shakespeare_cpu")
    beaten = [r["elapsed_s"] for r in records if r.get("val_loss", TARGET) < TARGET]
    return outcome | {"target": TARGET, "seconds_to_target": beaten[0] if beaten else None}


def threads() -> dict[str, Any]:
    """Steps/s of one run and of two at once, with threads that sleep and with ones that spin."""
    program = (
        "import time, torch\n"
        "from pathlib import Path\n"
        "from gpt.config import load_config\n"
        "from gpt.model.transformer import GPT\n"
        "from gpt.text.corpus import load_corpus\n"
        "from gpt.text.sources import open_text\n"
        "from gpt.training.step import TrainStep\n"
        f"config = load_config(Path({str(CONFIGS / 'quickstart.yaml')!r}))\n"
        "corpus = load_corpus(open_text('python-docs'))\n"
        "model = GPT(config.model, len(corpus.vocabulary))\n"
        "step = TrainStep(model, corpus.train, config, torch.device('cpu'))\n"
        "began, steps = time.perf_counter(), 0\n"
        "while time.perf_counter() - began < 8:\n"
        "    step(steps)\n"
        "    steps += 1\n"
        "print(steps / 8)\n"
    )
    table: dict[str, Any] = {}
    for name, spin in [("sleeping", "0"), ("spinning", "300000")] * 3:
        environment = os.environ | {"GOMP_SPINCOUNT": spin}
        for runs in (1, 2):
            started = [
                subprocess.Popen(
                    [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE
                )
                for _ in range(runs)
            ]
            rates = [float(run.communicate()[0]) for run in started]
            table.setdefault(f"{name}_{runs}_at_once", []).append(round(sum(rates), 1))
    return {f"{name}_steps_per_s": statistics.median(rates) for name, rates in table.items()}


PARTS = {part.__name__: part for part in (startup, quickstart, shakespeare, threads)}


def main() -> None:
    """Measure the parts named on the command line, by default all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parts = parser.parse_args().parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    machine = {
        "date": date.today().isoformat(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    print(json.dumps(machine | {part: PARTS[part]() for part in parts}, indent=2))


if __name__ == "__main__":
    main()
