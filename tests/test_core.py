"""The core of the package trains and samples without the rest of it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PANGRAM

PACKAGE = Path(__file__).parents[1] / "gpt"
FOLDERS = ("config", "text", "model", "runs", "sampling", "training")
API = ("__init__", "model", "new_run", "training")
CLI = ("__init__", "main", "options", "repl", "runs", "sample", "train")
CORE = [
    *PACKAGE.glob("*.py"),
    *(path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py")),
    *(PACKAGE / "api" / f"{name}.py" for name in API),
    *(PACKAGE / "cli" / f"{name}.py" for name in CLI),
    *(PACKAGE / "evaluation" / f"{name}.py" for name in ("__init__", "loss")),
]


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """A folder with a copy of the core and of the shipped configs, and a text."""
    (tmp_path / "my.txt").write_text(PANGRAM * 199)
    for path in CORE:
        copy = tmp_path / path.relative_to(PACKAGE.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    shutil.copytree(PACKAGE.parent / "configs", tmp_path / "configs")
    return tmp_path


def run(core: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = (
        f"import sys; sys.path.insert(0, {str(core)!r})\n"
        f"import gpt; assert gpt.__file__.startswith({str(core)!r})\n"
        f"from gpt.cli.main import main; main()"
    )
    command = [sys.executable, "-P", "-c", program, *arguments]
    return subprocess.run(command, cwd=core, capture_output=True, text=True)


def test_the_core_trains_and_samples_without_the_rest(core):
    few = ["--set", "train.steps=20", "--set", "train.warmup_steps=3"]
    done = run(core, "train", "my.txt", "--config", "quickstart", *few)
    assert done.returncode == 0, done.stderr
    assert "all steps done: step 20" in done.stdout
    sampled = run(core, "sample", "my", "--length", "31", "--seed", "7")
    assert (sampled.returncode, len(sampled.stdout)) == (0, 32), sampled.stderr
    assert "20/20" in run(core, "runs").stdout
    commands = re.findall(r"^  (\w+)  ", run(core, "--help").stdout, re.M)
    assert commands == ["train", "sample", "runs"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["my.txt", "--minutes", "1"], "needs the folder gpt/recipe; give --config"),
        ([".", "--config", "quickstart"], "other texts need the folder gpt/reading"),
    ],
)
def test_the_core_names_the_folder_that_it_lacks(core, arguments, told):
    done = run(core, "train", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert told in done.stderr
    assert not (core / "runs").exists()
