"""What a notebook relies on: `gpt.train`, `gpt.load` and what a loaded model gives."""

import inspect
import pickle
import pydoc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpt
from gpt import api
from gpt.api.evaluation import analyze_attention
from gpt.errors import Interrupted, UsageError
from tests.conftest import PANGRAM, saved_weights, small, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("api"))


def test_a_model_can_be_pickled(run):
    """Bug: `cannot pickle '_thread.lock' object`, so multiprocessing could not pass a model."""
    model = gpt.load(run)
    assert pickle.loads(pickle.dumps(model)).loss(PANGRAM) == model.loss(PANGRAM)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": -5}, "sample.length: expected greater than or equal to 0, got -5"),
        ({"seed": True}, "seed: expected an integer >= 0, got True"),
        ({"seed": np.float64(3.9)}, "seed: expected an integer >= 0, got np.float64(3.9)"),
        ({"seed": torch.tensor(3.9)}, "seed: expected an integer >= 0, got tensor(3.9000)"),
        ({"stops": 3}, "stops: expected a str or a list of str, got 3"),
        ({"rules": 3}, "rules: expected a dict such as {'min_p': 0.1}, got 3"),
        ({"rules": {"topk": 5}}, "sample.topk: unknown key; did you mean sample.top_k?"),
        ({"prompts": 3}, "prompts: expected a str or a list of str, got 3"),
    ],
)
def test_an_argument_that_cannot_be_is_refused(run, options, message):
    """A negative length generated without end; top_k = 0 failed inside numpy.

    Bug: seeds of any type were accepted, and wrong types ended in raw errors.
    """
    with pytest.raises(UsageError) as refused:
        gpt.load(run).sample(**{"prompts": ""} | options)
    assert str(refused.value) == message


def test_one_stop_string_is_a_string_or_a_list_of_one(run):
    """Bug: stops="END" stopped at each of its letters; so was a str of prompts each letter."""
    model = gpt.load(run)
    whole = "".join(model.generate("the ", length=200, seed=3))
    stop = whole[150:153]
    text = "".join(model.generate("the ", length=200, seed=3, stops=stop))
    assert text == whole[: whole.index(stop)]
    assert not all(c not in text for c in stop)
    chunks = list(model.sample("the ", length=9, seed=3))
    assert ({chunk.sample for chunk in chunks}, chunks[-1].ended) == ({0}, True)


def test_logits_can_be_used_with_autograd(run):
    """Bug: they were an inference tensor, which no backward pass takes."""
    logits = gpt.load(run).logits("the ")
    scale = torch.ones(1, requires_grad=True)
    (logits * scale).sum().backward()
    assert scale.grad is not None
    assert not logits.is_inference()


def test_the_loss_of_a_text_with_unknown_characters(run, caplog):
    """Bug: there was no way to leave them out, and to learn how many they are."""
    model, text = gpt.load(run), "the 9 lazy 9Ω dogs"
    with pytest.raises(UsageError, match=r"9 Ω; leave .* drop_unknown=True"):
        model.loss(text)
    assert model.loss(text, drop_unknown=True) == model.loss("the  lazy  dogs")
    assert caplog.messages == [
        "dropped 3 of 18 characters, which are outside the model's vocabulary: 9 Ω"
    ]


def at_once(works: list[Callable[[], Any]]) -> list[Any]:
    """What each work returns, when all are begun at the same moment in threads."""
    begin = threading.Barrier(len(works))

    def work(one: Callable[[], Any]) -> Any:
        begin.wait()
        return one()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(work, one) for one in works]]


def test_trainings_with_dropout_in_threads_leave_the_weights_that_they_leave_alone(text_file):
    """Bug: masks were drawn from the generator of the process; 0 of 4 such runs had equal bits."""

    def trained(seed: int, name: str) -> dict[str, bytes]:
        config = small(seed=seed, model__dropout=0.3)
        return saved_weights(gpt.train(config, text=text_file, run_dir=name).run)

    alone = [trained(seed, f"alone-{seed}") for seed in range(3)]
    beside = at_once([lambda seed=seed: trained(seed, f"{seed}") for seed in range(3)])
    assert beside == alone


def test_a_training_draws_nothing_from_the_generator_of_the_process(text_file):
    """Bug: it seeded and restored that generator, so draws of other threads were repeated."""
    torch.manual_seed(1)
    expected = torch.rand(100_000)
    torch.manual_seed(1)
    drawn: list[torch.Tensor] = []
    states: list[torch.Tensor] = []

    def on_event(event: dict[str, Any]) -> None:  # amid a training, as another thread would
        drawn.append(torch.rand(100))

    def step_hook(frame: Any, event: str, _: Any) -> None:
        """Look at the generator at each call of a function of this package."""
        if event == "call" and "/gpt/model/" in frame.f_code.co_filename:
            states.append(torch.get_rng_state())
            if not states[-1].equal(states[0]):
                states.pop(0)

    changes: dict[str, Any] = {"model__dropout": 0.3, "train__steps": 2, "train__sample_length": 0}
    gpt.train(small(**changes), text=text_file, run_dir="a", on_event=on_event)
    assert torch.cat(drawn).equal(expected[: 100 * len(drawn)])
    before = torch.get_rng_state()
    sys.setprofile(step_hook)
    try:
        gpt.train(small(**changes), text=text_file, run_dir="b")
    finally:
        sys.setprofile(None)
    assert states
    assert all(state.equal(before) for state in states)


def test_a_model_in_several_threads_returns_what_it_returns_in_one(run):
    """Bug: hooks on the shared module fired for other threads, and a head was zeroed for all."""
    model, text = gpt.load(run), "a quick fox"
    logits, loss, weight = model.logits(text), model.loss(text * 9), model.attention(text).weights
    without = analyze_attention(model, text).losses_without
    works: list[Callable[[], Any]] = [
        lambda: [analyze_attention(model, text).losses_without.equal(without) for _ in range(9)],
        lambda: [model.logits(text).equal(logits) for _ in range(99)],
        lambda: [model.attention(text).weights.equal(weight) for _ in range(29)],
        lambda: [model.loss(text * 9) == loss for _ in range(9)],
    ]
    assert all(all(each) for each in at_once(works))


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MODES: dict[str, Callable[[], Any]] = {
    "float64": default_dtype,
    "meta": lambda: torch.device("meta"),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        *((mode, {"model__dropout": 0.1}) for mode in MODES),
        (
            "float64",
            {"train__optimizer": "adamw", "model__ensemble": 2, "train__precision": "bf16"},
        ),
    ],
)
def test_modes_of_torch_that_the_caller_has_set_change_nothing(text_file, mode, changes):
    """Bug: with a default dtype of float64 a run was trained that could not be loaded.

    With the other modes, training failed with a raw error.
    """
    config = small(**changes)
    found = []
    for context in (nullcontext, MODES[mode]):
        with context():
            outcome = gpt.train(config, text=text_file, run_dir="r", overwrite=True)
            model = gpt.load(outcome.run)
            text = "".join(model.generate("the ", length=9, seed=1))
            loss, attention = model.loss("a quick fox"), model.attention("a fox").weights
            found.append(
                (saved_weights(outcome.run), outcome.val_loss, text, loss, attention.tolist())
            )
    assert found[0] == found[1]


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_is_where_it_began_wherever_the_caller_changes_to(
    text_file, tmp_path, monkeypatch, fails
):
    """Bug: files were looked for in the new folder, and a failed training kept its lock."""
    (tmp_path / "elsewhere").mkdir()
    seen: list[dict[str, Any]] = []

    def on_event(event: dict[str, Any]) -> None:
        seen.append(event)
        monkeypatch.chdir(tmp_path / "elsewhere")
        if fails and event["step"] == 8:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        outcome = gpt.train(small(), text=text_file, run_dir="r", on_event=on_event)
        assert outcome.run == str(tmp_path / "r")
    assert not [*(tmp_path / "elsewhere").iterdir()]
    assert gpt.load(tmp_path / "r").step
    if fails:
        assert gpt.resume(tmp_path / "r").step == 11


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": b"abc"}, "expected the name of a text, or a list of names, got b'abc'"),
        ({"text": []}, "data.source: expected the name of a text"),
        ({"settings": 3}, "settings: expected a dict such as {'train.steps': 500}, or a list"),
        ({"settings": "train.step=3"}, "train.step: unknown key"),  # not a list of letters
        ({"run_dir": 3}, "run_dir: expected a str or Path, got 3"),
        ({"config": "a\0b"}, r"a\x00b: cannot read the config (embedded null byte)"),
        ({"config": "a--b", "run_dir": "r"}, "a--b: cannot read the config"),
        ({"config": {"seed": 3}}, "config: expected a Config, or the name of a file, got {'se"),
        ({"settings": [5]}, "expected SECTION.KEY=VALUE"),
        ({"settings": {"train.steps": len}}, "train.steps: expected a valid integer, got ['<built"),
        ({"settings": {"data.source": "caf\udce9"}}, "data.source: expected UTF-8 text; rename"),
        ({"settings": {"data.encoding": "idna"}}, "data.encoding: expected an encoding that"),
    ],
)
def test_wrong_types_are_named(options, message):
    """Bug: raw TypeErrors; bytes were read as a list of numbers, and an empty list as no text.

    Bug: the codec idna only failed when a text was read.
    """
    with pytest.raises(UsageError) as told:
        gpt.train(**options)
    assert message in str(told.value)


def test_help_lists_the_functions_and_describes_them():
    """Bug: `help(gpt)` listed no function, and `help(gpt.train)` had the address of a lambda."""
    assert {*gpt.__all__} <= {*dir(gpt)}
    page = pydoc.render_doc(gpt, renderer=pydoc.plaintext)
    assert all(f"{name}(" in page for name in ("load", "resume", "sweep", "train"))
    assert (Path(gpt.__file__).parent / "py.typed").is_file()


PUBLIC = [
    *(getattr(api, name) for name in api.MODULES if name != "Model"),
    *(f for name, f in vars(gpt.Model).items() if inspect.isfunction(f) and name[0] != "_"),
]


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_a_public_function_describes_its_parameters(function):
    """Bug: some had `**options: Any`, and no description of parameters and results."""
    signature, doc = inspect.signature(function), inspect.getdoc(function) or ""
    assert "<lambda>" not in str(signature)
    parameters = [name for name in signature.parameters if name != "self"]
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    if parameters:
        arguments = doc.partition("Args:")[2].partition("\n\n")[0]
        assert [name for name in parameters if name not in arguments] == []
        assert "Returns:" in doc or signature.return_annotation is None
        assert "Raises:" in doc


def test_a_stop_before_training_writes_no_run(run, elsewhere):
    """Bug: a run of a config was begun, evaluated and saved after Ctrl-C."""
    text = run.with_name("text.txt")
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


def test_python_without_streams_trains_and_samples(run, elsewhere):
    """Bug: with pythonw, sys.stderr is None and the progress bar raised AttributeError."""
    arguments = (str(run / "config.yaml"), str(run.with_name("text.txt")))
    subprocess.run([sys.executable, "-c", WITHOUT_STREAMS, *arguments], check=True)
    assert Path("r/checkpoints/index.json").exists()


LEFT_BEHIND = """
import gc, os, sys, threading

import gpt
from gpt import api
from gpt.api.evaluation import analyze_attention
from gpt.api.run_text import run_text

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
run = gpt.train(config, text=text, settings={"threads": 2, "model.ensemble": 2}).run
others = [thread for thread in threading.enumerate() if not thread.daemon]
others.remove(threading.main_thread())
print(left(), [*filter(end, others)])
api.resume(run, settings={"train.steps": 15})
model = gpt.load(run)
list(model.sample(["the"] * 2, length=3))
model.attention("the quick")
print({key: value for key, value in os.environ.items() if environment.get(key) != value})
print({"sympy", "torch._dynamo", "torch._inductor"} & set(sys.modules))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no list of open files here")
def test_a_training_leaves_no_thread_file_or_variable_and_imports_no_compiler(run, elsewhere):
    """Bug: workers and the text's ids stayed until garbage collection.

    A library set KMP_DUPLICATE_LIB_OK as a sample was drawn. Importing torch's compiler, for
    the shape of a mean on `meta`, took a second of each run.
    """
    arguments = (str(run / "config.yaml"), str(run.with_name("text.txt")))
    command = [sys.executable, "-c", LEFT_BEHIND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "set() []\n{}\nset()\n"
