"""`gpt explain LESSON --write FILE.py`: the file needs torch alone, and is the textbook GPT."""

import ast
import math
import random
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.config.load import load_config
from gpt.config.schema import Config, ModelConfig
from gpt.lessons.standalone import STAGES
from gpt.model.transformer import GPT
from gpt.text.batches import to_torch
from gpt.text.corpus import load_corpus
from gpt.text.sources import open_source
from gpt.training.start import train
from tests.test_model import shaken

Gpt = Callable[..., tuple[int, str, str]]
TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen jugs.\n"


@pytest.fixture
def written(gpt: Gpt) -> dict[str, Any]:
    """The names that the file of the last lesson defines."""
    assert gpt("explain", "recipe", "--write", "gpt.py")[:2] == (0, "gpt.py\n")
    return runpy.run_path("gpt.py")


@pytest.mark.parametrize("lesson", STAGES)
def test_a_written_model_is_a_program_that_trains_and_writes(
    gpt: Gpt,
    lesson: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It imports only torch and the standard library. Its loss falls below that of guessing."""
    assert gpt("explain", lesson, "--write", "model.py")[0] == 0
    tree = ast.parse(Path("model.py").read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert modules <= {"math", "sys", "pathlib", "torch", "torch.nn.functional"}
    Path("text.txt").write_text(TEXT * 20)
    monkeypatch.setattr(sys, "argv", ["model.py", "text.txt", "7"])
    runpy.run_path("model.py", run_name="__main__")
    head, sample = capsys.readouterr().out.split("\n", 1)
    assert float(head.removeprefix("val loss ")) < math.log(len(set(TEXT)))
    assert len(sample) == 202  # the first character, 200 that are drawn, and a line end


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected the name of a UTF-8 text, got an error: .*No such file"),
        (b"caf\xe9", "expected the name of a UTF-8 text, got an error: .*0xe9"),
        (b"short", "expected a train split longer than T = 64, got 4"),
    ],
)
def test_a_text_that_a_written_model_cannot_train_on_ends_in_one_line(
    gpt: Gpt, monkeypatch: pytest.MonkeyPatch, text: bytes | None, message: str
) -> None:
    """Bug: it ended in a traceback."""
    assert gpt("explain", "recipe", "--write", "gpt.py")[0] == 0
    if text is not None:
        Path("text.txt").write_bytes(text)
    monkeypatch.setattr(sys, "argv", ["gpt.py", "text.txt"])
    with pytest.raises(SystemExit, match=message):
        runpy.run_path("gpt.py", run_name="__main__")


def test_the_written_gpt_has_the_logits_of_production(written: dict[str, Any]) -> None:
    sizes = {"T": 13, "C": 35, "n_layer": 3, "n_head": 5, "head_size": 7, "value_size": 7}
    form = load_config("classic").model.model_dump()
    production = shaken(GPT(ModelConfig.model_validate(form | sizes), 37))
    textbook = written["Textbook"](37, 13, 35, n_layer=3, n_head=5)
    textbook.load_state_dict(production.state_dict())
    ids = torch.randint(37, (3, 11))
    torch.testing.assert_close(textbook(ids), production(ids), rtol=1e-3, atol=1e-3)


def test_the_written_gpt_trains_to_the_loss_of_classic(written: dict[str, Any]) -> None:
    """In a small size. The losses of other seeds differ by 2 %."""
    docs = load_corpus(open_source("python-docs"))
    lines = docs.vocabulary.decode(docs.ids.tolist()).splitlines(keepends=True)
    random.Random(1).shuffle(lines)  # so that train and val split are alike
    Path("text.txt").write_text("".join(lines)[:60_000], "utf-8")
    corpus = load_corpus(open_source("text.txt"))
    sizes = {"T": 16, "C": 32, "n_layer": 1, "n_head": 2, "head_size": 16, "value_size": 16}
    tree = load_config("classic").model_dump()
    tree["model"] = load_config("classic").model.model_dump() | sizes
    short = {"steps": 200, "eval_every": 200, "checkpoint_every": 200, "sample_length": 0}
    tree["train"] |= short | {"batch_size": 32, "learning_rate": 0.01, "warmup_steps": 20}
    classic = train(Config.model_validate(tree), corpus, Path("run")).val_loss
    torch.manual_seed(1337)
    textbook = written["Textbook"](len(corpus.vocabulary), 16, 32, n_layer=1, n_head=2)
    written["fit"](textbook, to_torch(corpus.train), (32, 16), 200, 0.01)
    ours = written["val_loss"](textbook, to_torch(corpus.val), 16)
    assert ours == pytest.approx(classic, rel=0.05)
    assert ours < 0.6 * math.log(len(corpus.vocabulary))


def test_a_written_file_replaces_nothing(gpt: Gpt) -> None:
    Path("old.py").write_text("mine")
    for arguments, message in [
        (["head", "--write", "old.py"], "--write old.py: expected a new file, but it exists"),
        (["head", "--write", "a.txt"], "--write a.txt: expected a name that ends in .py"),
        (["--write", "a.py"], "--write: name a lesson too"),
    ]:
        code, out, err = gpt("explain", *arguments)
        assert (code, out, message in err) == (2, "", True)
    assert Path("old.py").read_text() == "mine"
