"""What the README shows works as typed."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpt import api
from tests.conftest import PANGRAM, small

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
TEXT = PANGRAM.capitalize() * 43


def python_lines() -> str:
    """The README's lines of Python."""
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    return str(block)


def test_the_lines_of_python_run_in_a_fresh_process(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text(TEXT, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", python_lines()], capture_output=True, text=True, check=True
    )
    assert "'kind': 'evaluation'" in done.stdout
    shapes = re.findall(r"torch\.Size\(\[(.*?)\]\)", done.stdout)
    V = len(set(TEXT))
    assert shapes == [f"3, {V}", "2, 2, 9, 9"]


def test_the_lines_of_python_run_in_a_thread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal handler can only be installed in the main thread."""
    (tmp_path / "my.txt").write_text(TEXT, "utf-8")
    thread = threading.Thread(target=lambda: exec(python_lines(), {}))
    thread.start()
    thread.join()
    assert "torch.Size([2, 2, 9, 9])" in capsys.readouterr().out


def test_pandas_loads_the_metrics_of_a_run_in_one_line() -> None:
    pandas = pytest.importorskip("pandas")
    Path("my.txt").write_text(TEXT, "utf-8")
    outcome = api.train(small(), text="my.txt", run_dir="runs/my-run")
    (line,) = re.findall(r"`(pandas\.read_json\(.*\))`", README)
    table = eval(line, {"pandas": pandas})
    assert table["val_loss"].dropna().min() == outcome.val_loss
    assert table["step"].max() == 11


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 100
    for page in [ROOT / "README.md", ROOT / "gpt/README.md", ROOT / "scripts/README.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
