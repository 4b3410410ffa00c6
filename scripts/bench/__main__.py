"""Measure the figures in the READMEs, and print one JSON object.

    python scripts/bench fast cpu                      these parts
    python scripts/bench fast shapes --nanogpt PATH    beside a checkout of nanoGPT

Times on a shared machine vary: quote medians, and ratios that were taken in one call. nanoGPT needs
the extra `bench`: pip install -e '.[bench]'
"""

import argparse
import importlib
import inspect
import json
import os
import platform
import sys
from datetime import date
from pathlib import Path

if not __package__:  # started as a folder, whose files must not hide other modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in gpt/__main__.py
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

TOPICS = {  # parts by module
    "training": ("startup", "quickstart", "fast", "cpu", "best", "dryrun", "shapes"),
    "recipes": ("recipe", "finetune", "compare_equal"),
    "parts": ("parts",),
    "steps": ("peak", "optimizer", "workers"),
    "ranks": ("ranks",),
    "gpu": ("gpu",),
    "memory": ("memory", "refusals"),
    "sampling": ("sampling", "ensembles"),
    "words": ("words",),
    "texts": ("preparation",),
    "eval": ("eval_memory", "eval_page", "eval_speed"),
    "serve": ("serve",),
    "pages": ("page_speed", "accessibility", "attend_picture"),
}
MODULES = {part: topic for topic, parts in TOPICS.items() for part in parts}
FLAGS: dict[str, tuple[type, str]] = {  # the parameters of parts: type and help
    "text": (Path, "file of a text, by default tinyshakespeare"),
    "run": (Path, "run folder"),
    "page": (Path, "HTML file"),
    "axe": (Path, "axe.min.js of the npm package axe-core"),
    "out": (Path, "file of results or a picture, or folder for pictures"),
    "nanogpt": (Path, "checkout of nanoGPT to measure in turn"),
    "minutes": (float, "length of a run, by default 2"),
}


def main() -> None:
    """Measure the parts that the command line names."""
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="+", choices=MODULES, metavar="PART", help=", ".join(MODULES)
    )
    for flag, (kind, text) in FLAGS.items():
        parser.add_argument(f"--{flag}", type=kind, help=text)
    asked = parser.parse_args()
    results = {
        "date": date.today().isoformat(),
        "command": " ".join(sys.argv[1:]),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    for name in asked.parts:
        measure = getattr(importlib.import_module(f"bench.{MODULES[name]}"), name)
        parameters = inspect.signature(measure).parameters
        values = {flag: getattr(asked, flag) for flag in parameters}
        given = {flag: value for flag, value in values.items() if value is not None}
        for flag, parameter in parameters.items():
            if flag not in given and parameter.default is parameter.empty:
                parser.error(f"{name} needs --{flag}: {FLAGS[flag][1]}")
        results[name] = measure(**given)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
