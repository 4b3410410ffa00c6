"""The lessons in a terminal, as notebooks and as programs; their exercises; the textbook."""

import ast
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
import torch

from gpt.config.load import load_config
from gpt.config.schema import ModelConfig
from gpt.lessons import FOLLOW, LESSONS, ladder, textbook
from gpt.lessons.render import check, check_differ, heat_map, table, to_notebook, to_program
from gpt.model.transformer import GPT
from tests.conftest import trained
from tests.lessons import SECONDS, cells_of, printed, short, shown
from tests.test_model import shaken

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen jugs.\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run trained with dropout and QK norm, on a text of its own."""
    changes = {"train__steps": 40, "model__dropout": 0.5, "model__attention_scale": 1.5}
    return str(trained(tmp_path_factory.mktemp("trained"), TEXT * 53, **changes))


def run_of(name: str, run: str) -> str | None:
    return run if name == FOLLOW else None


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_fits_200_lines_of_80_columns_and_every_check_holds(name, run):
    """Bugs: tables of 93 columns wrapped in the middle of a number, and code in a statement."""
    lines = shown(name, run_of(name, run)).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 200
    code = [cell.text for cell in cells_of(name, run_of(name, run)) if cell.kind == "code"]
    assert {line.rstrip() for line in "\n".join(code).splitlines()} <= {x[2:] for x in lines} | {""}
    output = printed(name, run_of(name, run))
    assert "✗" not in output
    assert output.count("✓") >= 1 or name == "counting"


@pytest.mark.parametrize("name", LESSONS)
def test_a_notebook_has_the_code_of_the_lesson_and_collapsed_answers(name, run):
    cells = cells_of(name, run_of(name, run))
    notebook = nbformat.reads(to_notebook(cells), as_version=4)
    nbformat.validate(notebook)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code == [cell.text for cell in cells if cell.kind == "code"]
    assert "<details>" in notebook.cells[-2].source


@pytest.mark.parametrize("name", ["averaging", "counting", FOLLOW])
def test_a_notebook_runs_from_a_clean_kernel_and_prints_what_the_lesson_prints(name, run, tmp_path):
    notebook = nbformat.reads(to_notebook(cells_of(name, run_of(name, run))), as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")
    assert SECONDS.sub("", text).split() == printed(name, run_of(name, run)).split()
    drawn = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(drawn) == sum(cell.source.count("\nheat_map(") for cell in notebook.cells)


@pytest.mark.parametrize("name", ["scaling", FOLLOW])
def test_a_written_program_prints_what_the_lesson_prints(name, run, tmp_path, gpt):
    path = tmp_path / "my.py"
    options = ["--run", run] if name == FOLLOW else []
    assert gpt("explain", name, "--write", path, *options)[:2] == (0, f"{path}\n")
    output = run_program(short(path.read_text("utf-8")), tmp_path)
    assert SECONDS.sub("", output).split() == printed(name, run_of(name, run)).split()


@pytest.mark.parametrize("name", LESSONS)
def test_only_the_two_exercises_are_a_numbered_list(name):
    """Bug: a line of prose that began with "0. **Clipping**" became an item of a list."""
    prose = [cell.text for cell in cells_of(name) if cell.kind == "markdown"]
    assert re.findall(r"^(\d+)\. ", "\n".join(prose), re.MULTILINE) == ["1", "2"]


# --- exercises ---

FENCED = re.compile(r"```(\w+)\n(.*?)\n```", re.DOTALL)
CLAIM = re.compile(r"^[✓✗] (.*?)(?: \((?:equal|differ)|: (?:NOT|do NOT))", re.MULTILINE)
FAILED = re.compile(r"^✗ (.*?): (?:NOT|do NOT)", re.MULTILINE)


def run_program(text: str, tmp_path: Path) -> str:
    path = tmp_path / "edited.py"
    path.write_text(text, "utf-8")
    done = subprocess.run([sys.executable, path], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", LESSONS)
def test_the_edit_of_an_exercise_does_what_the_answer_says(name, run, tmp_path):
    """Two answers had figures of an edit that was applied twice."""
    cells = cells_of(name, run_of(name, run))
    (task,) = (c.text for c in cells if c.kind == "markdown" and "```diff" in c.text)
    answer = " ".join(next(c.text for c in cells if c.kind == "answer").split())
    ((_, diff),) = FENCED.findall(task)
    old = "\n".join(line[1:] for line in diff.splitlines() if line.startswith("-"))
    new = "\n".join(line[1:] for line in diff.splitlines() if line.startswith("+"))
    program = to_program(cells, answer=False)
    code = "\n".join(line for line in program.splitlines() if not line.startswith("#"))
    assert code.count(f"{old}\n") == 1
    start = program.index(f"\n{old}\n")
    output = run_program(f"{program[:start]}\n{new}\n{program[start + len(old) + 2 :]}", tmp_path)
    claims = set(CLAIM.findall(printed(name, run_of(name, run))))
    said = {claim for claim in claims if f'"{claim}"' in answer}
    assert set(FAILED.findall(output)) == said
    for figure in re.findall(r"\d+\.\d{4}", answer):
        assert figure in output + printed(name, run_of(name, run))


@pytest.mark.parametrize("name", LESSONS)
def test_the_answer_of_the_function_to_write_is_right(name, run, tmp_path):
    cells = cells_of(name, run_of(name, run))
    answer = next(cell.text for cell in cells if cell.kind == "answer")
    ((_, body),) = FENCED.findall(answer)
    assert "not written yet" in printed(name, run_of(name, run))
    program = to_program(cells, answer=False)
    (empty,) = re.findall(r'^def [^\n]*\n    """[^\n]*"""\n\n\n', program, re.MULTILINE)
    output = run_program(program.replace(empty, f"{empty.rstrip()}\n{body}\n\n\n"), tmp_path)
    assert "not written yet" not in output
    assert "✗" not in output
    before, after = (
        [line for line in SECONDS.sub("", text).splitlines() if line[:1] not in "…✓"]
        for text in (printed(name, run_of(name, run)), output)
    )
    assert after == before  # the program prints what the lesson prints


# --- what lessons print ---


def test_a_check_says_what_it_got(capsys):
    check("sum", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    check("shape", torch.zeros(2, 3), torch.zeros(3))
    check("nan", torch.tensor([1.0, math.nan]), torch.tensor([1.0, 3.0]))
    check("mine", None, 3)
    check("rounding", torch.tensor(1.0), torch.tensor(1.0 + 5e-7))
    check_differ("two", torch.zeros(2), torch.zeros(2))
    assert capsys.readouterr().out.splitlines() == [
        "✗ sum: NOT equal, got 2.0000, expected 3.0000",
        "✗ shape: NOT equal, got shape (2, 3), expected (3,)",
        "✗ nan: NOT equal, got nan, expected 3.0000",
        "… mine: not written yet (the function returns None)",
        "✓ rounding (equal within 5e-07)",
        "✗ two: do NOT differ, only by 0e+00",
    ]


def test_tables_are_aligned(capsys):
    table("caption", {"a": [1.5, -2], "bb": [1e-7, -math.inf]}, ["x", "y"])
    heat_map("map", torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    assert capsys.readouterr().out.splitlines() == [
        "caption",
        "         x     y",
        "a   1.5000    -2",
        "bb   1e-07  -inf",
        "map",
        "        t=0     t=1",
        "t=0       1       0",
        "t=1  0.2500  0.7500",
    ]


# --- the textbook ---


@pytest.fixture
def written(gpt):
    assert gpt("explain", "textbook", "--write", "gpt.py")[:2] == (0, "gpt.py\n")
    return Path("gpt.py")


def test_the_textbook_is_a_short_program_that_needs_torch_alone(written, monkeypatch, capsys):
    source = written.read_text("utf-8")
    assert len(source.splitlines()) <= 200
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert modules <= {"math", "sys", "time", "pathlib", "torch", "torch.nn.functional"}
    Path("text.txt").write_text(TEXT * 20)
    monkeypatch.setattr(sys, "argv", ["gpt.py", "text.txt", "7"])
    runpy.run_path(str(written), run_name="__main__")
    out = capsys.readouterr().out
    V = len(set(TEXT))
    assert f"V = {V}, ln V = {math.log(V):.4f}, " in out
    assert float(re.search(r"val loss (\S+),", out)[1]) < math.log(V)  # type: ignore[index]
    assert len(out.split(" s\n", 1)[1]) == 502  # the first character, 500 drawn, a line end


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected the name of a UTF-8 text, got an error: .*No such file"),
        (b"caf\xe9", "expected the name of a UTF-8 text, got an error: .*0xe9"),
        (b"short", "expected a train split longer than 64 characters, got 4"),
    ],
)
def test_a_text_that_the_textbook_cannot_train_on_ends_in_one_line(
    written, monkeypatch, text, message
):
    """Bug: it ended in a traceback."""
    if text is not None:
        Path("text.txt").write_bytes(text)
    monkeypatch.setattr(sys, "argv", ["gpt.py", "text.txt"])
    with pytest.raises(SystemExit, match=message):
        runpy.run_path(str(written), run_name="__main__")


def test_the_textbook_has_the_logits_of_production():
    sizes = {"T": 13, "C": 35, "n_layer": 3, "n_head": 5, "head_size": 7, "value_size": 7}
    form = load_config("classic").model.model_dump()
    production = shaken(GPT(ModelConfig.model_validate(form | sizes), 37))
    book = textbook.TextbookGPT(37, 13, 35, 5, n_layer=3)
    book.load_state_dict(production.state_dict())
    ids = torch.randint(37, (3, 11))
    torch.testing.assert_close(book(ids), production(ids), rtol=1e-3, atol=1e-3)


def test_the_rates_of_the_textbook_rise_and_fall():
    rates = [textbook.learning_rate(step, 2000) for step in range(2000)]
    assert rates[:100] == sorted(rates[:100])
    assert rates[99:] == sorted(rates[99:], reverse=True)
    assert (max(rates), rates[-1]) == (textbook.RATE, pytest.approx(textbook.MIN_RATE, rel=1e-3))


# --- the ladder ---


def test_a_row_is_the_same_however_often_it_is_trained():
    V = len(ladder.python_docs()[2])

    def new() -> torch.nn.Module:
        return ladder.SmallModel(V, ladder.Residual(ladder.Head(64, 64)))

    assert ladder.fit(new, 3)[1] == ladder.fit(new, 3)[1]


def test_the_ladder_shows_the_rows_so_far(capsys):
    V = len(ladder.python_docs()[2])
    ladder.climb({"one head": lambda: ladder.SmallModel(V, ladder.Head(64, 64))}, 3)
    names = [line[2:34].strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == ["bigram", "average", "average of values", "one head"]


def test_val_loss_predicts_each_character_of_whole_windows_once():
    table: Any = torch.nn.Embedding(5, 5)
    ids = torch.tensor([0, 1, 2, 3, 4, 0, 1])
    losses = -table(ids[:-1]).log_softmax(-1).gather(1, ids[1:, None])
    assert ladder.val_loss(table, ids, T=3) == pytest.approx(losses.mean().item())


# --- the command ---


def test_a_written_file_replaces_nothing(gpt):
    """Bug: a link was refused with "a plain file to replace", though no file is replaced."""
    Path("old.py").write_text("mine")
    Path("link.py").symlink_to("old.py")
    for arguments, message in [
        (["head", "--write", "old.py"], "--write old.py: expected a new file, but it exists"),
        (["head", "--write", "link.py"], "--write link.py: expected a new file, but it exists"),
        (["head", "--write", "a.txt"], "--write a.txt: expected a name that ends in .py or .ipynb"),
        (["--write", "a.py"], "--write: give a lesson, too"),
        (["textbook", "--write", "a.ipynb"], "it is a program, not a lesson"),
    ]:
        code, out, err = gpt("explain", *arguments)
        assert (code, out, message in err) == (2, "", True)
    assert Path("old.py").read_text() == "mine"


def test_the_answers_are_shown_on_request_and_a_failing_check_ends_with_1(gpt, monkeypatch):
    code, out, _ = gpt("explain", "scaling")
    assert (code, "69.8759" in out, "next: gpt explain heads" in out) == (0, False, True)
    assert "69.8759" in gpt("explain", "scaling", "--answer")[1]
    monkeypatch.setattr("gpt.lessons.render.MAX_ROUNDING", -1.0)
    code, _, err = gpt("explain", "scaling")
    assert (code, "scaling: a check fails" in err) == (1, True)


def test_code_is_highlighted_in_a_colour_terminal():
    from gpt.lessons.render import to_terminal

    cells = cells_of("scaling")[:3]
    assert "\x1b[" not in to_terminal(cells, 80, colour=False, answer=False)
    assert "\x1b[" in to_terminal(cells, 80, colour=True, answer=False)
