"""tests/README.md names the test that holds each promise; each of them is there."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_test_that_the_readme_names_is_there() -> None:
    named = re.findall(r"`(test_\w+\.py::test_\w+)`", (TESTS / "README.md").read_text("utf-8"))
    there = {
        f"{path.name}::{node.name}"
        for path in TESTS.glob("test_*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert len(named) > 30
    assert set(named) <= there, sorted(set(named) - there)
