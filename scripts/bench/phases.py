"""Where the seconds of a whole `gpt train` go: imports, steps, evaluations, pictures, exit."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

# functions whose time is measured, without the time of others of this list that they call
PHASES = {
    "read the text": "gpt.api.run_text:encode_sources",
    "make the model": "gpt.training.start:initial_model",
    "start the device": "gpt.training.start:select_device",
    "compile": "gpt.training.step:compile_model",
    "steps": "gpt.training.step:TrainStep.__call__",
    "wait for results": "gpt.training.step:TrainStep.read",
    "evaluations": "gpt.training.evaluator:evaluate_each",
    "samples": "gpt.training.evaluator:generate_text",
    "checkpoints": "gpt.training.checkpointer:Checkpointer.save",
    "baselines": "gpt.evaluation.baselines:trigram_bits_per_character",
    "pictures": "gpt.training.tensorboard:TensorBoard.on_end",
    "last sample": "gpt.cli.train:_print_outcome",
}


def phases(
    text: Annotated[Path | None, typer.Option(help="The text; default that of the config.")] = None,
    config: Annotated[str, typer.Option(help="A shipped config.")] = "shakespeare_gpu",
) -> dict[str, float]:
    """Measure the seconds of each phase of `gpt train --config CONFIG`, as a whole process.

    On a GPU, a step returns early. Its time is then in `steps` or in `wait for results`.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, began = Path(folder, "report.json"), time.time()
        program = f"from bench.phases import run; run({str(report)!r}, {began!r})"
        command = [sys.executable, "-c", program, "train", *([str(text)] if text else [])]
        command += ["--config", config, "--run-dir", str(Path(folder, "run"))]
        scripts = Path(__file__).resolve().parents[1]
        paths = str(scripts), str(scripts.parent), os.environ.get("PYTHONPATH", "")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
        seconds: dict[str, float] = json.loads(report.read_text())
        whole = time.time() - began
    seconds["exit"] = whole - sum(seconds.values())
    return {name: round(each, 2) for name, each in seconds.items()} | {"whole": round(whole, 2)}


def run(report: str, began: float) -> None:
    """Run the command line, and write the seconds of each phase to `report`."""
    seconds = {"Python": time.time() - began}
    running = ["everything else"]
    since = time.perf_counter()

    def switch(name: str) -> None:
        """Attribute the time since the last switch, and begin to measure `name`."""
        nonlocal since
        now = time.perf_counter()
        seconds[running[-1]] = seconds.get(running[-1], 0.0) + now - since
        since = now
        running.append(name)

    def measured(name: str, function: Any) -> Any:
        @wraps(function)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            switch(name)
            try:
                return function(*arguments, **options)
            finally:
                switch(name)
                del running[-2:]

        return wrapper

    measured("import torch", importlib.import_module)("torch")
    measured("other imports", importlib.import_module)("gpt.training.start")
    for name, place in PHASES.items():
        module, _, path = place.partition(":")
        *owners, function = path.split(".")
        owner = importlib.import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, function, measured(name, getattr(owner, function)))
    from gpt.cli.main import main

    try:
        main()
    finally:
        switch("exit")
        Path(report).write_text(json.dumps(seconds))
