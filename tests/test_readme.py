"""What the README shows works as typed."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpt import api
from tests.conftest import PANGRAM, small

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
TEXT = PANGRAM.capitalize() * 43


def test_the_lines_of_python_run_in_a_fresh_process(tmp_path):
    """And in a thread of it: a signal handler can only be installed in the main thread."""
    (tmp_path / "my.txt").write_text(TEXT, "utf-8")
    program = (
        "import sys, threading\n"
        "thread = threading.Thread(target=exec, args=(sys.argv[1], {}))\n"
        "thread.start()\n"
        "thread.join()"
    )
    (lines,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    command = [sys.executable, "-c", program, lines]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "'kind': 'evaluation'" in done.stdout
    shapes = re.findall(r"torch\.Size\(\[(.*?)\]\)", done.stdout)
    V = len(set(TEXT))
    assert shapes == [f"9, {V}", "2, 2, 9, 9"]


def test_pandas_loads_the_metrics_of_a_run_in_one_line():
    """The line once lacked `precise_float`, and most losses differed in their last digit."""
    pandas = pytest.importorskip("pandas")
    Path("my.txt").write_text(TEXT, "utf-8")
    outcome = api.train(small(), text="my.txt", run_dir="runs/my-run")
    (command,) = re.findall(r"`(pandas\.read_json\(.*\))`", README)
    table = eval(command, {"pandas": pandas})
    lines = Path("runs/my-run/metrics.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    for name in ["val_loss", "train_loss"]:
        expected = [record[name] for record in records if record.get(name) is not None]
        assert table[name].dropna().tolist() == expected
    assert table["val_loss"].min() == outcome.val_loss
    assert table["step"].max() == 11


def test_it_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 100
    for page in [ROOT / "README.md", ROOT / "gpt/README.md", ROOT / "scripts/README.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_behaviour_of_the_map_is_where_it_says():
    """Bug: no document named the file of back-propagation, of signals, or of misspelt settings."""
    page = (ROOT / "gpt/README.md").read_text("utf-8")
    rows = re.findall(r"^\| .+ \| \[(.+?)\]\(\1\) \| `(\w+)` \|$", page, re.MULTILINE)
    assert len(rows) >= 40
    for name, thing in rows:
        tree = ast.parse((ROOT / "gpt" / name).read_text("utf-8"))
        named = {node.name for node in ast.walk(tree) if hasattr(node, "name")}
        named |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert thing in named, f"{name}: {thing}"


def test_every_test_that_the_readme_names_is_there():
    tests = ROOT / "tests"
    named = re.findall(r"`(test_\w+\.py::test_\w+)`", (tests / "README.md").read_text("utf-8"))
    there = {
        f"{path.name}::{node.name}"
        for path in tests.glob("test_*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert len(named) > 30
    assert set(named) <= there, sorted(set(named) - there)
