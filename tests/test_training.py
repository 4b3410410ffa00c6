"""Batches in, checkpoints out: what a run promises."""

import gc
import json
import logging
import math
import os
import signal
import subprocess
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from gpt.config.load import load_config
from gpt.device import autocast, select_precision
from gpt.distributed import SINGLE
from gpt.errors import DeviceError, TrainingError, UsageError
from gpt.evaluation import windows
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import make_model
from gpt.model.transformer import GPT, cross_entropy
from gpt.reading.sources import open_source
from gpt.runs.read import read_checkpoint
from gpt.seeds import derive_seed
from gpt.text.batches import batch
from gpt.text.corpus import load_corpus
from gpt.training import workers
from gpt.training.members import build_step
from gpt.training.rollback import is_failure
from gpt.training.schedule import Schedule
from gpt.training.start import train_run
from tests.conftest import (
    COMMAND,
    HANGS_S,
    load,
    metrics_of,
    records,
    saved_weights,
    small,
    wait_until,
)

pytestmark = pytest.mark.precision

CPU = torch.device("cpu")


def test_a_step_takes_the_gradient_of_its_batch_and_adamws_first_step(corpus):
    """AdamW's first update is the learning rate times the gradient's sign, after decay."""
    config = small(
        train__grad_clip=0.0,
        train__warmup_steps=0,
        train__learning_rate=0.01,
        train__optimizer="adamw",
        train__precision="fp32",
    )
    model = GPT(config.model, len(corpus.vocabulary))
    torch.nn.init.normal_(model.head.weight)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    x, y = batch(corpus.train, 6, 13, seed=config.seed, step=3)
    loss = cross_entropy(model(x), y)
    gradients = dict(zip(before, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    rate = Schedule(config).lr(3)
    norm = torch.cat([g.flatten() for g in gradients.values()]).norm()

    got_loss, got_norm = build_step(config, model, CPU, SINGLE, corpus.train)(3)

    torch.testing.assert_close(got_loss, loss.detach())
    torch.testing.assert_close(got_norm, norm, rtol=1e-5, atol=0.0)
    for name, parameter in model.named_parameters():
        decay = 1 - rate * config.train.weight_decay * (parameter.ndim == 2)
        g = gradients[name]
        expected = before[name] * decay - rate * g / (g.abs() + 1e-8)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-4, atol=1e-5)


def test_accumulation_changes_nothing_but_memory(corpus):
    models = []
    for micro_batches in (1, 3):
        config = small(train__accumulation=micro_batches, train__precision="fp32")
        models.append(GPT(config.model, len(corpus.vocabulary), torch.Generator().manual_seed(2)))
        step = build_step(config, models[-1], CPU, SINGLE, corpus.train)
        losses = torch.tensor([step(i)[0] for i in range(5)])
        if micro_batches == 1:
            expected = losses
    torch.testing.assert_close(losses, expected)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("threads", "windows"), [(2, 6), (3, 6), (7, 6), (11, 6), (1, 2), (2, 2), (3, 1), (67, 6)]
)
def test_threads_and_chunks_of_a_batch_change_nothing_but_time_and_memory(
    corpus, set_threads, monkeypatch, threads, windows
):
    """Whether there are many threads, or many windows: also where they cannot be divided equally,
    or are fewer than the threads.
    """
    config = small(model__character_dropout=0.3, train__precision="fp32")
    results: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
    for count, at_once in ((1, 6), (threads, windows)):
        set_threads(count)
        monkeypatch.setattr(workers, "CHUNK_NUMBERS", at_once * config.model.T * config.model.C)
        model = GPT(config.model, len(corpus.vocabulary), torch.Generator().manual_seed(2))
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(3))
        seen: list[int] = []
        model.register_forward_pre_hook(
            lambda _model, inputs, seen=seen: seen.append(len(inputs[0]))
        )
        loss, _ = build_step(config, model, CPU, SINGLE, corpus.train)(5)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        results.append((loss, gradients))
        assert sum(seen) == 6
        assert max(seen) == min(at_once, -(-6 // min(count, workers.MAX_WORKERS)))
    torch.testing.assert_close(results[1][0], results[0][0])
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-4, atol=1e-7)


def test_a_run_computes_with_its_threads_and_leaves_torchs_number_alone(
    corpus, set_threads, caplog
):
    """How many there are decides the last digits, and nobody could set it."""
    set_threads(3)
    stops = {"train__stop_at_val_loss": 99.0}
    counts = []

    def note(event: dict[str, Any]) -> None:
        counts.append(torch.get_num_threads())

    train_run(small(threads=2, **stops), corpus, Path("r"), on_event=note)
    assert set(counts) == {2}
    train_run(small(threads=2), corpus, Path("r"), mode="resume")
    assert "threads" not in caplog.text
    train_run(small(threads=5, train__steps=12), corpus, Path("r"), mode="resume")
    assert "threads: computing with 5, where the run had 2" in caplog.text
    assert torch.get_num_threads() == 3
    lines = Path("r/provenance.jsonl").read_text().splitlines()
    assert [json.loads(line)["threads"] for line in lines] == [2, 2, 5]


def test_a_resume_on_a_chip_of_another_precision_says_so(corpus, monkeypatch, caplog):
    """A run begun where auto means bfloat16 went on in float32 without a word."""
    monkeypatch.setattr("gpt.device.has_fast_bf16", lambda device: True)
    train_run(small(train__stop_at_val_loss=99.0), corpus, Path("r"))
    train_run(small(train__steps=12), corpus, Path("r"), mode="resume")
    assert "precision" not in caplog.text
    monkeypatch.setattr("gpt.device.has_fast_bf16", lambda device: False)
    train_run(small(train__steps=13), corpus, Path("r"), mode="resume")
    assert "computing with float32, where the run had bfloat16" in caplog.text


@pytest.mark.parametrize("fails", [False, True])
def test_a_deterministic_run_leaves_torch_as_it_was(corpus, fails):
    """What was computed after it, in a notebook say, had to be deterministic, too."""
    enabled: list[bool] = []

    def note(event: dict[str, Any]) -> None:
        enabled.append(torch.are_deterministic_algorithms_enabled())
        if fails:
            raise KeyboardInterrupt

    environment = dict(os.environ)
    with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
        train_run(small(deterministic=True), corpus, Path("r"), on_event=note)
    assert set(enabled) == {True}
    assert not torch.are_deterministic_algorithms_enabled()
    assert dict(os.environ) == environment


def test_an_error_in_a_worker_ends_the_step_and_keeps_nothing_of_it(corpus, set_threads):
    """The error once kept all that the threads had computed, when there was no memory to spare."""
    set_threads(3)
    config = small()
    model = GPT(config.model, len(corpus.vocabulary))
    step, made = build_step(config, model, CPU, SINGLE, corpus.train), []

    def fail_once(_model: GPT, _inputs: object, logits: torch.Tensor) -> None:
        made.append(weakref.ref(logits))
        if len(made) == 2:
            raise RuntimeError("can't allocate memory")

    hook = model.register_forward_hook(fail_once)
    gc.disable()
    try:
        with pytest.raises(TrainingError, match="not enough memory"):
            step(0)
        assert len(made) == 3
        assert [logits() for logits in made] == [None] * 3
    finally:
        gc.enable()
    hook.remove()
    assert step(0)[0].item() == pytest.approx(math.log(len(corpus.vocabulary)))


def test_gradients_are_clipped_to_their_norm(corpus):
    config = small(train__grad_clip=1e-3)
    step = build_step(config, GPT(config.model, len(corpus.vocabulary)), CPU, SINGLE, corpus.train)
    _, norm = step(0)
    assert norm > 1e-3
    clipped = torch.cat([p.grad.flatten() for p in step.model.parameters()]).norm()
    assert clipped.item() == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_learns_too_and_keeps_its_weights_in_float32(corpus, precision):
    config = small(train__precision=precision, train__learning_rate=1e-2)
    step = build_step(config, GPT(config.model, len(corpus.vocabulary)), CPU, SINGLE, corpus.train)
    losses = [step(i)[0].item() for i in range(40)]
    assert losses[-1] < 0.9 * losses[0]
    assert {p.dtype for p in step.model.parameters()} == {torch.float32}
    with autocast(CPU, step.precision):
        logits = step.model(torch.zeros(1, 3, dtype=torch.long))
    assert logits.dtype == step.precision


@pytest.mark.parametrize("n", [2, 13, 14, 15, 201])
def test_val_loss_scores_each_character_from_those_before_it_in_its_window(corpus, n):
    T = 13
    model = GPT(small().model, len(corpus.vocabulary))
    torch.nn.init.normal_(model.head.weight)
    ids = corpus.ids[:n]
    total = 0.0
    for i in range(1, n):  # one character at a time
        start = (i - 1) // T * T
        logits = model(torch.tensor([ids[start:i].tolist()]))[0, -1]
        total -= logits.log_softmax(0)[int(ids[i])].item()
    assert evaluate(model, ids) == pytest.approx(total / (n - 1), rel=1e-5)


def test_the_val_loss_is_the_same_digits_by_any_number_of_threads(corpus, set_threads, monkeypatch):
    monkeypatch.setattr(windows, "EVAL_CHARACTERS", 2 * 13)
    model = GPT(small().model, len(corpus.vocabulary), torch.Generator().manual_seed(2))
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(3))
    scored = []
    for threads in (1, 2, 3, 7):
        set_threads(threads)
        together = Barrier(threads)  # passed by none before all are there

        def wait(*_: Any, together: Barrier = together) -> None:
            together.wait(timeout=HANGS_S)

        waits = model.register_forward_pre_hook(wait)
        scored.append(evaluate(model, corpus.ids[: threads * 2 * 13 + 1]))
        waits.remove()
        scored.append(evaluate(model, corpus.ids))
        assert torch.get_num_threads() == threads
    assert scored[1::2] == [scored[1]] * 4


def test_the_same_seed_writes_the_same_metrics_and_weights(corpus):
    config = small(model__dropout=0.3)
    for name in ("a", "b"):
        train_run(config, corpus, Path(name))
        torch.rand(7)  # whatever else draws
    assert metrics_of(Path("a")) == metrics_of(Path("b"))
    assert saved_weights("a") == saved_weights("b")
    train_run(small(model__dropout=0.3, seed=1), corpus, Path("c"))
    assert saved_weights("a") != saved_weights("c")


def test_evaluating_and_saving_twice_as_often_changes_nothing(corpus):
    """In nanoGPT an evaluation draws from the generator that training draws from."""
    for name, every in (("a", 4), ("b", 2)):
        changes = {"train__eval_every": every, "train__checkpoint_every": every}
        dropout = {"model__dropout": 0.3}
        train_run(small(**dropout, **changes), corpus, Path(name))
    records = {record["step"]: record for record in metrics_of(Path("b"))}
    assert sorted(records) == [0, 2, 4, 6, 8, 10, 11]
    for record in metrics_of(Path("a")):
        assert record.items() <= records[record["step"]].items()
    assert saved_weights("a") == saved_weights("b")


@pytest.mark.parametrize(
    ("threads", "stop_at", "drawn"),
    [
        (1, 1, "model__dropout"),
        (2, 5, "model__dropout"),
        (1, 8, "model__character_dropout"),
        (2, 1, "model__character_dropout"),
    ],
)
def test_a_resumed_run_goes_on_bit_for_bit(corpus, set_threads, threads, stop_at, drawn):
    """nanoGPT seeds again on resume, and so replays its first batches."""
    set_threads(threads)
    whole = small(**{drawn: 0.3})
    train_run(whole, corpus, Path("whole"))
    part = small(**{drawn: 0.3}, train__stop_at_val_loss=99.0, train__eval_every=stop_at)
    assert train_run(part, corpus, Path("part")).step == stop_at
    train_run(whole, corpus, Path("part"), mode="resume")
    assert saved_weights("whole") == saved_weights("part")
    records = {record["step"]: record for record in metrics_of(Path("part"))}
    assert sorted(records) == [record["step"] for record in metrics_of(Path("part"))]
    for record in metrics_of(Path("whole")):
        if record["step"] >= stop_at:  # before, the part was evaluated at other steps
            assert record.items() <= records[record["step"]].items()


def test_a_resumed_run_knows_its_best(corpus):
    """With its progress forgotten on resume, a run would overwrite its best by worse."""
    changes = {"train__learning_rate": 0.3, "train__warmup_steps": 11, "train__eval_every": 1}
    whole = train_run(small(**changes), corpus, Path("whole"))
    stop = whole.best_step
    assert 0 < stop < 11
    part = changes | {"train__stop_at_val_loss": 99.0, "train__eval_every": stop}
    assert train_run(small(**part), corpus, Path("part")).step == stop
    resumed = train_run(small(**changes), corpus, Path("part"), mode="resume")
    assert (resumed.best_step, resumed.best_val_loss) == (stop, whole.best_val_loss)
    assert read_checkpoint(Path("part"), "best").step == stop


@pytest.mark.parametrize("grad_clip", [0.0, 1.0])
def test_a_float16_overflow_in_one_optimizer_skips_the_update_of_both(corpus, grad_clip):
    """The other once stepped on NaN, or, clipped to nothing, by its momentum alone."""
    config = small(train__precision="fp16", train__grad_clip=grad_clip)
    model = GPT(config.model, len(corpus.vocabulary), torch.Generator().manual_seed(1))
    step = build_step(config, model, CPU, SINGLE, corpus.train)
    step(0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    state, scale = step.state_dict(), step.state_dict().numbers["scaler"]["scale"]
    kept = {name: array.copy() for name, array in state.tensors.items()}
    hook = model.norm.bias.register_hook(lambda gradient: gradient * float("inf"))  # AdamW's
    loss, norm = (result.item() for result in step(1))
    hook.remove()
    assert not math.isfinite(norm)
    assert not is_failure(step.scaler, loss, norm), "the scaler finds its scale"
    assert all(p.equal(before[name]) for name, p in model.named_parameters())
    after = step.state_dict()
    assert all((kept[name] == array).all() for name, array in after.tensors.items())
    assert after.numbers["scaler"]["scale"] == scale / 2
    step(1)
    assert not any(p.equal(before[name]) for name, p in model.named_parameters() if p.ndim == 2)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_probe_changes_nothing(corpus, precision, members):
    """In float16, the gradients of some steps overflow."""
    config = small(train__precision=precision, model__ensemble=members)
    states = []
    for is_probed in (False, True):
        model = make_model(config.model, len(corpus.vocabulary), seed=1)
        step = build_step(config, model, CPU, SINGLE, corpus.train)
        for i in range(3):
            if is_probed:
                step.probe(i)
            step.read([step(i)])
        state = step.state_dict()
        tensors = state.tensors | {name: p.detach().numpy() for name, p in model.named_parameters()}
        states.append((state.numbers, {name: array.tobytes() for name, array in tensors.items()}))
    assert states[0] == states[1]


def test_metrics_say_what_happened_at_each_step(corpus):
    outcome = train_run(small(train__steps=21, train__eval_every=8), corpus, Path("r"))
    records = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [0, 8, 10, 16, 20, 21]
    assert [r["step"] for r in records if "val_loss" in r] == [0, 8, 16, 21]
    assert records[0].keys() == {"step", "elapsed_s", "val_loss"}
    logged = {"step", "elapsed_s", "train_loss", "lr", "grad_norm", "chars_per_s", "passes"}
    assert records[2].keys() == logged
    assert records[-1].keys() == logged | {"val_loss"}
    assert records[2]["lr"] == Schedule(small(train__steps=21)).lr(9)
    assert records[0]["val_loss"] == pytest.approx(math.log(len(corpus.vocabulary)), rel=0.02)
    elapsed = [r["elapsed_s"] for r in records]
    assert elapsed == sorted(elapsed)
    model = load("r")
    assert evaluate(model, corpus.val) == records[-1]["val_loss"] == outcome.val_loss
    assert (outcome.step, outcome.reason) == (21, "all steps done")


RISING = {
    "train__optimizer": "adamw",
    "train__learning_rate": 0.3,
    "train__warmup_steps": 11,
    "train__eval_every": 1,
    "model__qk_norm": False,
    "model__activation": "gelu",
    "model__ngram": 1,
}


def test_a_rising_val_loss_is_told_once_with_the_step(corpus, caplog):
    """nanoGPT's shipped config overfits after a few evaluations, and says nothing."""
    with caplog.at_level(logging.WARNING, "gpt"):
        train_run(small(**RISING), corpus, Path("r"))
    (told,) = [r.getMessage() for r in caplog.records if "risen" in r.getMessage()]
    losses = [r["val_loss"] for r in metrics_of(Path("r")) if "val_loss" in r]
    rising = [s for s in range(9) if min(losses[s + 1 : s + 4]) > losses[s] == min(losses[: s + 1])]
    assert f"risen since step {rising[0]}: the model overfits" in told
    assert "remains the best" in told


def test_resume_refuses_another_text_and_a_finished_run(corpus, text_file):
    train_run(small(), corpus, Path("r"))
    with pytest.raises(UsageError, match=r"r is finished: .* step 11 of 11\. .*train.steps=22"):
        train_run(small(), corpus, Path("r"), mode="resume")
    text_file.write_text(text_file.read_text().replace("fox", "ofx"))
    changed = load_corpus(open_source(str(text_file)))
    with pytest.raises(UsageError, match=r"is not the text that r began with"):
        train_run(small(train__steps=20), changed, Path("r"), mode="resume")


@pytest.mark.parametrize(
    ("device", "has_bf16", "auto"),
    [
        ("cpu", True, torch.bfloat16),
        ("cpu", False, torch.float32),
        ("cuda", True, torch.bfloat16),
        ("cuda", False, torch.float16),
    ],
)
def test_auto_precision_follows_the_chip(device, has_bf16, auto, monkeypatch):
    capabilities = {"avx2": True, "avx512_bf16": has_bf16, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    assert select_precision("auto", torch.device(device)) == auto
    assert select_precision("fp32", torch.device(device)) == torch.float32
    assert select_precision("bf16", torch.device(device)) == torch.bfloat16


def test_seeds_differ_by_seed_purpose_and_step():
    keys = [(s, p, n) for s in (0, 1, 11) for p in ("init", "batch") for n in (0, 1, 11)]
    assert len({derive_seed(*key) for key in keys}) == len(keys)
    assert derive_seed(1337, "batch", 0) == derive_seed(1337, "batch", 0)


@pytest.fixture
def no_compiler() -> Iterator[None]:
    """A machine without a C++ compiler, whatever this one has."""
    from torch._inductor import config as inductor

    torch.compiler.reset()
    with inductor.patch({"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}):
        yield
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore")  # torch's own, on its way to failing
def test_compile_on_without_a_compiler_is_told(corpus, no_compiler):
    config = small(train__compile="on")
    with pytest.raises(DeviceError, match=r"train.compile on: .*install a C\+\+ compiler"):
        build_step(config, GPT(config.model, len(corpus.vocabulary)), CPU, SINGLE, corpus.train)


def test_memory_that_runs_out_while_compiling_is_not_the_compilers_failure(corpus, monkeypatch):
    """It was reported as "torch.compile does not work here", and only step 0's shape was tried."""
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: model)
    config = small(train__compile="on", model__T=12, train__first_window=4)
    for windows_of in (4, 12):
        model = GPT(config.model, len(corpus.vocabulary))

        def run_out(
            _model: GPT, inputs: tuple[torch.Tensor, ...], windows_of: int = windows_of
        ) -> None:
            if inputs[0].shape[1] == windows_of:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        model.register_forward_pre_hook(run_out)
        with pytest.raises(TrainingError, match=f"not enough memory .* of {windows_of} characters"):
            build_step(config, model, CPU, SINGLE, corpus.train)


@pytest.mark.filterwarnings("ignore")
def test_compile_auto_goes_on_without_a_compiler(corpus, no_compiler, caplog):
    from gpt.training.compiled import compile_model

    model = GPT(small().model, len(corpus.vocabulary))
    ids = torch.zeros(2, 5, dtype=torch.long)
    assert compile_model(model, "auto", lambda compiled: compiled(ids)) is model
    assert "torch.compile does not work here" in caplog.text
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_leaves_and_the_run_goes_on_exactly(
    corpus, text_file, start, number, code
):
    from gpt.config.yaml import to_yaml

    config = small(data__source=str(text_file), train__steps=100_000, train__checkpoint_every=10**6)
    Path("c.yaml").write_text(to_yaml(config.model_copy()))
    command = (*COMMAND, "train", "--config", "c.yaml", "--run-dir", "r")
    process = start(*command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_until(lambda: records("r") >= 3, process)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == code, err
    assert "Traceback" not in err
    step = read_checkpoint(Path("r"), "last").step
    told, advice = err.splitlines()[-1].split("; resume with: ")
    assert told == f"gpt: stopped at step {step}, saved"
    assert advice.endswith("-m gpt train --resume r")
    assert out == ""
    longer = load_config(Path("r/config.yaml"))
    stopping = load_config(longer, ["train.stop_at_val_loss=99.0", "train.eval_every=1"])
    end = train_run(stopping, corpus, Path("r"), mode="resume").step
    assert end in (step, step + 1), "the signal may have come in an evaluation, made up for now"
    train_run(small(train__steps=100_000, train__stop_at_val_loss=99.0, train__eval_every=end),
          corpus, Path("whole"))  # fmt: skip
    assert saved_weights("whole") == saved_weights("r")
