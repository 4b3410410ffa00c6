"""Print docstrings of gpt/ drawn at random, for a reader to judge.

    python scripts/draw_docstrings.py [--count 40] [--seed 1]

A reader who knows PyTorch but not this code counts those that needed a second reading.
"""

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "gpt"


def docstrings() -> Iterator[str]:
    """Yield each docstring below its place and the first line of what it describes."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            if docstring := ast.get_docstring(node):
                line = 1 if isinstance(node, ast.Module) else node.lineno
                described = "" if isinstance(node, ast.Module) else lines[line - 1].strip()
                place = f"{path.relative_to(PACKAGE.parent)}:{line}"
                yield f"{place}  {described}\n{docstring}"


def main() -> None:
    """Print the docstrings that the seed draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    drawn = random.Random(arguments.seed).sample([*docstrings()], arguments.count)
    for number, docstring in enumerate(drawn, start=1):
        print(f"--- {number}\n{docstring}\n")


if __name__ == "__main__":
    main()
