"""Print docstrings of gpt/ drawn at random, for a reader to judge.

    python scripts/draw_docstrings.py [--count 40] [--seed 1]

A reader who knows PyTorch but not this code counts those that needed a second reading.
"""

import ast
import random
from collections.abc import Iterator
from pathlib import Path

import typer

PACKAGE = Path(__file__).resolve().parents[1] / "gpt"


def docstrings() -> Iterator[str]:
    """Yield each docstring below its file and the signature of what it describes."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for signature, docstring in documented(tree, ""):
            yield f"{path.relative_to(PACKAGE.parent)}  {signature}\n{docstring}"


def documented(node: ast.AST, scope: str) -> Iterator[tuple[str, str]]:
    """Yield the signature and the docstring of `node`, and of all that is defined in it."""
    name = scope
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        name = f"{scope}.{node.name}".lstrip(".")
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        arguments = f"({ast.unparse(node.args)})" if isinstance(node, ast.FunctionDef) else ""
        if docstring := ast.get_docstring(node):
            yield name + arguments, docstring
    for child in ast.iter_child_nodes(node):
        yield from documented(child, name)


def draw(count: int = 40, seed: int = 1) -> None:
    """Print `count` docstrings that the seed draws."""
    each = [*docstrings()]
    drawn = random.Random(seed).sample(each, min(count, len(each)))
    for number, docstring in enumerate(drawn, start=1):
        print(f"--- {number}\n{docstring}\n")


if __name__ == "__main__":
    typer.run(draw)
