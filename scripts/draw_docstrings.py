"""Print docstrings, comments or messages of gpt/ drawn at random, for a reader to judge.

    python scripts/draw_docstrings.py [docstrings|comments|messages] [--count 40] [--seed 1]

A reader who knows PyTorch but not this code counts those that needed a second reading.
"""

import ast
import io
import random
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

PACKAGE = Path(__file__).resolve().parents[1] / "gpt"
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(source: str) -> Iterator[str]:
    """Yield each docstring below the signature of what it describes."""

    def documented(node: ast.AST, scope: str) -> Iterator[str]:
        name = scope
        if isinstance(node, ast.ClassDef | FUNCTION):
            name = f"{scope}.{node.name}".lstrip(".")
        if isinstance(node, ast.Module | ast.ClassDef | FUNCTION):
            arguments = f"({ast.unparse(node.args)})" if isinstance(node, FUNCTION) else ""
            if docstring := ast.get_docstring(node):
                yield f"{name}{arguments}\n{docstring}"
        for child in ast.iter_child_nodes(node):
            yield from documented(child, name)

    return documented(ast.parse(source), "")


def comments(source: str) -> Iterator[str]:
    """Yield each block of comments with the code beside or below it."""
    lines, block = source.splitlines(), list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            block.append(token.line.strip())
        elif block and token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            is_beside = token.type == tokenize.NEWLINE
            row = token.start[0]
            yield "\n".join([*block, *([] if is_beside else lines[row - 1 : row])])
            block = []


def messages(source: str) -> Iterator[str]:
    """Yield each exception that is raised with a text, and each call of the logger."""
    for node in ast.walk(ast.parse(source)):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        is_logged = ast.unparse(call.func).startswith("log.")
        has_text = any(isinstance(each, ast.Constant | ast.JoinedStr) for each in call.args)
        if has_text and (is_logged or isinstance(node, ast.Raise)):
            yield ast.unparse(call)


KINDS: dict[str, Callable[[str], Iterator[str]]] = {
    each.__name__: each for each in (docstrings, comments, messages)
}


def draw(kind: str = typer.Argument("docstrings"), count: int = 40, seed: int = 1) -> None:
    """Print `count` docstrings, comments or messages that the seed draws."""
    each = [
        f"{path.relative_to(PACKAGE.parent)}  {found}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for found in KINDS[kind](path.read_text("utf-8"))
    ]
    drawn = random.Random(seed).sample(each, min(count, len(each)))
    for number, found in enumerate(drawn, start=1):
        print(f"--- {number}\n{found}\n")


if __name__ == "__main__":
    typer.run(draw)
