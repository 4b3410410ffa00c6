"""tests/README.md names the test that holds each promise; each of them is there."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_test_that_the_readme_names_is_there() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (TESTS / "README.md").read_text("utf-8"))
    assert len(named) > 30
    for file, name in named:
        tree = ast.parse((TESTS / file).read_text("utf-8"))
        tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in tests, f"{file}::{name}"
