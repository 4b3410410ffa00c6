"""What a notebook relies on: `gpt.train`, `gpt.load` and what a loaded model gives."""

import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import gpt
from gpt.errors import ConfigError, Interrupted, UsageError
from tests.conftest import PANGRAM, small


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 11 steps, trained from Python."""
    folder = tmp_path_factory.mktemp("api")
    text = folder / "pangram.txt"
    text.write_text(PANGRAM * 29, "utf-8")
    outcome = gpt.train(small(), text=str(text), run_dir=folder / "run")
    return Path(outcome.run)


def test_generate_streams_what_the_command_line_prints(run: Path) -> None:
    text = "".join(gpt.load(run).generate("the ", length=31, seed=7))
    command = [sys.executable, "-m", "gpt", "sample", str(run), "--prompt", "the "]
    done = subprocess.run(
        [*command, "--length", "31", "--seed", "7"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"the {text}\n"
    assert len(text) == 31


def test_the_loss_of_a_text_is_that_of_its_logits(run: Path) -> None:
    model = gpt.load(run)
    text = "the lazy dog."  # 13 characters: one window of T = 13 holds all but the last
    logits = model.logits(text)
    assert logits.shape == (13, len(model.vocabulary))
    nats = [
        -math.log(logits[t].double().softmax(-1)[model.vocabulary.characters.index(c)])
        for t, c in enumerate(text[1:])
    ]
    assert model.loss(text) == pytest.approx(sum(nats) / 12, rel=1e-5)


def test_the_loss_of_the_val_split_is_the_runs_val_loss(run: Path) -> None:
    text = PANGRAM * 29
    outcome = gpt.load(run, "last")
    records = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    (last,) = [record for record in records if '"step": 11' in record and "val_loss" in record]
    val_loss = float(last.split('"val_loss": ')[1].rstrip("}").split(",")[0])
    assert outcome.loss(text[int(0.9 * len(text)) :]) == pytest.approx(val_loss, rel=1e-6)


def test_attention_has_a_row_of_weights_for_each_character(run: Path) -> None:
    weights = gpt.load(run).attention("a quick fox").weights
    assert weights.shape == (2, 3, 11, 11)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 11))


def test_an_analysis_tells_what_the_loss_would_be_without_each_head(run: Path) -> None:
    model = gpt.load(run)
    analysis = model.attention_analysis("a quick fox")
    assert analysis.losses.mean().item() == pytest.approx(model.loss("a quick fox"), rel=1e-5)
    assert analysis.losses_without.shape == (2, 3, 10)
    torch.testing.assert_close(analysis.weights, model.attention("a quick fox").weights)


def test_two_models_are_loaded_at_once(run: Path, tmp_path: Path) -> None:
    other = gpt.train(small(seed=3), text=str(run.parent / "pangram.txt"), run_dir=tmp_path / "b")
    a, b = gpt.load(run), gpt.load(other.run)
    before = a.logits("the ")
    assert not torch.equal(before, b.logits("the "))
    assert torch.equal(before, a.logits("the "))


def test_a_thread_trains_and_samples_and_changes_no_global_state(run: Path, tmp_path: Path) -> None:
    """Signal handlers can only be set in the main thread: training there once needed it."""
    before = torch.get_num_threads(), torch.get_rng_state(), threading.excepthook
    texts: list[str] = []

    def work() -> None:
        outcome = gpt.train(
            small(model__dropout=0.1), text=str(run.parent / "pangram.txt"), run_dir=tmp_path / "t"
        )
        texts.append("".join(gpt.load(outcome.run).generate("fox", length=17, seed=1)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [len(text) for text in texts] == [17]
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert threading.excepthook is before[2]


def test_settings_are_changed_by_a_mapping(run: Path, tmp_path: Path) -> None:
    outcome = gpt.train(
        small(),
        text=str(run.parent / "pangram.txt"),
        settings={"train.steps": 3, "sample.top_k": None},
        run_dir=tmp_path / "short",
    )
    assert outcome.step == 3
    resumed = gpt.resume(outcome.run, settings={"train.steps": 5})
    assert resumed.step == 5


def test_what_is_wrong_is_raised_as_one_message(run: Path) -> None:
    model = gpt.load(run)
    with pytest.raises(UsageError, match="outside the model's vocabulary: 9"):
        model.logits("9")
    with pytest.raises(
        UsageError, match=r"expected a text of 1 to model\.T = 13 characters, got 14"
    ):
        model.logits("the quick brow")
    with pytest.raises(UsageError, match="at least 2 characters, got 1"):
        model.loss("t")
    with pytest.raises(ConfigError, match=r"did you mean train\.steps"):
        gpt.train(settings={"train.step": 3})
    with pytest.raises(UsageError, match="nowhere"):
        gpt.load("nowhere")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": -5}, "length: expected greater than or equal to 0, got -5"),
        ({"top_k": 0}, "top_k: expected greater than 0, got 0"),
        ({"min_p": 7}, "min_p: expected less than or equal to 1, got 7"),
        ({"temprature": 1}, "temprature: unknown key; did you mean sample.temperature?"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(run: Path, options: dict[str, int], message: str) -> None:
    """A negative length generated without end; top_k = 0 failed inside numpy."""
    with pytest.raises(UsageError) as refused:
        next(gpt.load(run).generate("the ", **options))
    assert str(refused.value) == message


def test_one_setting_is_a_string_or_a_list_of_one(run: Path) -> None:
    """Its letters were taken as settings."""
    with pytest.raises(ConfigError, match=r"^train\.step: unknown key"):
        gpt.train(text="x.txt", settings="train.step=3")


def test_a_text_is_named_by_a_path_too(text_file: Path) -> None:
    """`Path("my.txt")`, as a notebook has it, ended in a TypeError."""
    first = gpt.train(small(), text=text_file, settings={"train.steps": 2})
    both = gpt.train(small(), text=[text_file, str(text_file)], settings={"train.steps": 2})
    assert (first.text, first.run) == (str(text_file), "runs/pangram")
    assert both.run == "runs/pangram-2"
    assert Path(both.run).is_dir()


def test_a_stop_before_training_writes_no_run(run: Path, elsewhere: Path) -> None:
    """Bug: a run of a config was begun, evaluated and saved after Ctrl-C."""
    text = run.with_name("pangram.txt")
    with pytest.raises(Interrupted, match="before training began; nothing is saved"):
        gpt.train(small(), text=text, run_dir="stopped", should_stop=lambda: True)
    assert not Path("stopped").exists()


WITHOUT_STREAMS = """
import sys
sys.stdin = sys.stdout = sys.stderr = None
import gpt
from gpt.cli.main import main

run = gpt.train(sys.argv[1], text=sys.argv[2], run_dir="r").run
assert len("".join(gpt.load(run).generate("the", length=5))) == 5
sys.argv = ["gpt", "sample", run]
main()
"""


def test_python_without_streams_trains_and_samples(run: Path, elsewhere: Path) -> None:
    """Bug: with pythonw, sys.stderr is None and the progress bar raised AttributeError."""
    arguments = (str(run / "config.yaml"), str(run.with_name("pangram.txt")))
    subprocess.run([sys.executable, "-c", WITHOUT_STREAMS, *arguments], check=True)
    assert Path("r/checkpoints/index.json").exists()


LEFT_BEHIND = """
import gc, os, sys, threading

import gpt

environment = dict(os.environ)

def left():
    files = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{fd}")}
    return {file for file in files if file.endswith((".npy", ".jsonl", ".lock"))}

def end(thread):
    thread.join(60)
    return thread.is_alive()

config, text = sys.argv[1:]
gpt.train(config, text=text, run_dir="first")  # torch is imported, with its own cycles
gc.collect()
gc.disable()
for number, changes in enumerate(({"threads": 2}, {"threads": 2, "model.ensemble": 2})):
    run = gpt.train(config, text=text, run_dir=f"r{number}", settings=changes).run
    others = [thread for thread in threading.enumerate() if not thread.daemon]
    others.remove(threading.main_thread())
    print(left(), [*filter(end, others)])
list(gpt.load(run).sample(["the"] * 2, length=3))
print({key: value for key, value in os.environ.items() if environment.get(key) != value})
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no list of open files here")
def test_a_training_leaves_no_thread_no_file_and_no_variable_behind(
    run: Path, elsewhere: Path
) -> None:
    """Bug: workers and the text's ids stayed until garbage collection.

    threadpoolctl set KMP_DUPLICATE_LIB_OK as a sample was drawn.
    """
    arguments = (str(run / "config.yaml"), str(run.with_name("pangram.txt")))
    command = [sys.executable, "-c", LEFT_BEHIND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "set() []\nset() []\n{}\n"
