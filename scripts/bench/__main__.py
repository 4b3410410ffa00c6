"""Measure the figures in the READMEs; each command prints one JSON object.

    python scripts/bench fast --nanogpt PATH    beside a checkout of nanoGPT
    python scripts/bench fast --help

Times on a shared machine vary: quote medians, and ratios that were taken in one call. nanoGPT needs
the extra `bench`: pip install -e '.[bench]'
"""

import importlib
import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import date
from functools import wraps
from pathlib import Path

import typer

sys.path[0] = str(Path(__file__).resolve().parents[1])  # files here must not hide other modules
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in gpt/__main__.py
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

TOPICS = {  # parts by module
    "training": ("startup", "fast", "cpu", "best", "dryrun", "shapes"),
    "recipes": ("recipe", "compare_equal"),
    "steps": ("peak", "optimizer", "workers", "threads", "gpu"),
    "phases": ("phases",),
    "large": ("long_text", "vocabulary_size", "eval_speed"),
    "ranks": ("ranks",),
    "memory": ("memory", "eval_memory", "refusals"),
    "sampling": ("sampling", "ensembles", "busy_core"),
    "words": ("words",),
    "texts": ("preparation",),
    "pages": ("eval_page", "page_speed", "page_equal", "accessibility"),
    "clients": ("transformers", "lm_eval"),
}


def printed(measure: Callable[..., object]) -> Callable[..., None]:
    """Return a command that prints what `measure` returns, and where it was measured."""

    @wraps(measure)
    def command(**arguments: object) -> None:
        machine = {
            "date": date.today().isoformat(),
            "command": " ".join(sys.argv[1:]),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        }
        print(json.dumps(machine | {measure.__name__: measure(**arguments)}, indent=2))

    return command


if __name__ == "__main__":
    app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)
    for topic, parts in TOPICS.items():
        module = importlib.import_module(f"bench.{topic}")
        for part in parts:
            app.command(part)(printed(getattr(module, part)))
    app()
