"""Messages advise options on the command line, and arguments of the functions in Python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpt as package
from gpt import api
from gpt.cli.main import COMMANDS
from gpt.errors import GPTError

LATIN = ("Die Würde des Menschen ist unantastbar, sie zu schützen Pflicht. " * 9).encode("cp1252")


@pytest.fixture
def run(gpt: Callable[..., Any], config_file: Path) -> str:
    """A finished run, beside a text in cp1252 and a very short one."""
    Path("latin.txt").write_bytes(LATIN)
    Path("short.txt").write_text("the quick")
    assert gpt("train", "--config", config_file, "--run-dir", "a run")[0] == 0
    return "a run"


def evaluate(text: str, **options: object) -> object:
    return api.evaluate(package.load("a run"), text, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("typed", "called", "advised", "in_python"),
    [
        (
            ("train", "--run-dir", "a run"),
            lambda: package.train(run_dir="a run"),
            "resume it by gpt train --resume 'a run', replace it by --overwrite, or choose another "
            "--run-dir",
            'resume it by gpt.resume("a run"), replace it by overwrite=True, or choose another '
            "run_dir",
        ),
        (
            ("train", "--resume", "a run"),
            lambda: package.resume("a run"),
            "add --minutes 5, or --set train.steps=22",
            'add minutes=5, or settings=["train.steps=22"]',
        ),
        (
            ("train", "latin.txt", "--set", "train.steps"),
            lambda: package.train(text="latin.txt", settings=["train.steps"]),
            "--set train.steps: expected SECTION.KEY=VALUE, such as train.steps=500",
            'settings=["train.steps"]: expected SECTION.KEY=VALUE, such as train.steps=500',
        ),
        (
            ("train", "latin.txt", "--minutes", 1, "--set", "train.steps=5"),
            lambda: package.train(text="latin.txt", minutes=1, settings=["train.steps=5"]),
            "expected either --minutes or train.steps, got both",
            "expected either minutes or train.steps, got both",
        ),
        (
            ("train", "--config", "small.yaml", "--device", "cuda:77"),
            lambda: package.train("small.yaml", settings={"device": "cuda:77"}),
            "; use cpu, or install another build of torch",
            "; use cpu, or install another build of torch",
        ),
        (
            ("data", "latin.txt"),
            lambda: api.describe("latin.txt"),
            "convert it to UTF-8, or add --set data.encoding=cp1252 or --set data.errors=replace",
            'convert it to UTF-8, or add settings=["data.encoding=cp1252"] or '
            'settings=["data.errors=replace"]',
        ),
        (
            ("eval", "a run", "short.txt", "--memorisation"),
            lambda: evaluate("short.txt", memorisation=True),
            "; leave out --memorisation, or use a longer text",
            "; leave out memorisation, or use a longer text",
        ),
        (
            ("export", "a run", "--to", "html", "--out", "short.txt"),
            lambda: api.export(package.load("a run"), "html", "short.txt"),
            "--out short.txt: expected a name that ends in .html",
            "out short.txt: expected a name that ends in .html",
        ),
        (
            ("sample", "a run", "--checkpoint", "newest"),
            lambda: package.load("a run", "newest"),
            "--checkpoint newest: expected best, last or a step",
            "checkpoint newest: expected best, last or a step",
        ),
    ],
)
def test_a_message_names_what_the_user_can_type(typed, called, advised, in_python, run, gpt):
    """Bug: `gpt.train(run_dir=...)` advised --overwrite, then "leave out memorisation=True"."""
    code, _, err = gpt(*typed)
    assert (code > 0, advised in err) == (True, True), err
    with pytest.MonkeyPatch.context() as patch, pytest.raises(GPTError) as error:
        patch.setattr("sys.argv", ["notebook.py"])
        called()
    assert in_python in str(error.value)


def test_settings_are_only_advised_by_commands_that_take_them(run, gpt):
    """Bug: `gpt eval` advised --set, which it does not have."""
    code, _, err = gpt("eval", run, "latin.txt")
    assert (code, err.strip().endswith("; convert it to UTF-8"), "--set" in err) == (1, True, False)
    for command in COMMANDS:
        has_option = "--set" in gpt(command, "--help")[1]
        advises = "--set" in gpt(command, "latin.txt", "train.steps=5")[2]
        assert advises <= has_option, command
