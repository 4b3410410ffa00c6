"""What an accelerator is promised, shown on a pretended one: a CPU's numbers, and no waiting."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gpt.config.schema import Config
from gpt.cuda_graph import replayed
from gpt.device import computing_with, select_device, select_precision
from gpt.distributed import SINGLE
from gpt.errors import DeviceError
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import LanguageModel, make_model, members_of
from gpt.model.transformer import GPT
from gpt.recipe.choose import choose_config
from gpt.runs.read import read_checkpoint
from gpt.sampling.torch_engine import TorchEngine
from gpt.text.corpus import Corpus
from gpt.training import linear_cross_entropy
from gpt.training.compiled import with_compile_choice
from gpt.training.members import build_step
from gpt.training.start import train_run
from gpt.training.step import TrainStep
from gpt.training.stopwatch import CHARACTER, Stopwatch
from tests.conftest import HANGS_S, metrics_of, small
from tests.pretend import CPU, PRETEND, count_syncs, plugged_in, two_gpus


@pytest.fixture
def pretend() -> Iterator[torch.device]:
    with plugged_in() as device:
        yield device


def model_on(device: torch.device, *, V: int = 31, **changes: Any) -> GPT:
    """A model of seed 1 whose head is not zero, so that every parameter has a gradient."""
    model = GPT(small(**changes).model, V, torch.Generator().manual_seed(1))
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(2))
    return model.to(device)


def ensemble_on(device: torch.device) -> LanguageModel:
    """Likewise, of two members."""
    model = make_model(small(model__ensemble=2).model, 31, seed=1)
    for i, member in enumerate(members_of(model)):
        torch.nn.init.normal_(member.head.weight, generator=torch.Generator().manual_seed(i))
    return model.to(device)


def step_on(device: torch.device, corpus: Corpus, *, V: int = 31, **changes: Any) -> TrainStep:
    config = small(train__precision="fp32", **changes)
    return build_step(config, model_on(device, V=V, **changes), device, SINGLE, corpus.train)


def tensors_of(step: TrainStep) -> list[torch.Tensor]:
    """The weights and what the optimizers keep, on the CPU."""
    kept = [t for each in step.optimizers for ts in each.state.values() for t in ts]
    return [t.detach().cpu().clone() for t in (*step.model.parameters(), *kept)]


def test_a_tensor_on_the_wrong_device_fails(pretend):
    there, here = torch.ones(3, device=pretend), torch.ones(3)
    for wrong in (
        lambda: there + here,
        lambda: torch.stack([here, there]),
        lambda: there.normal_(generator=torch.Generator()),
        lambda: model_on(pretend)(torch.zeros(2, 3, dtype=torch.long)),
        lambda: model_on(CPU)(torch.zeros(2, 3, dtype=torch.long, device=pretend)),
    ):
        with pytest.raises(RuntimeError, match=PRETEND):
            wrong()


def test_what_makes_the_cpu_wait_is_counted(pretend):
    x = torch.arange(7, device=pretend)
    with count_syncs() as syncs:
        (x.float() + torch.ones(7).to(pretend)).sum()
        assert syncs() == 0
        for i, wait in enumerate((x.sum().item, x.cpu, x.nonzero, lambda: bool(x[3] > 2))):
            wait()
            assert syncs() == i + 1


def test_the_chosen_gpu_is_the_one_that_torch_allocates_on():
    """Bug: with `device: cuda:1`, pinned memory and streams were allocated on GPU 0."""
    with two_gpus() as cuda:
        assert select_device("cuda:1") == torch.device("cuda:1")
        assert cuda.current == 1


def test_precision_is_that_of_the_chosen_gpu():
    """Bug: GPU 0 was asked whether GPU 1 computes in bfloat16."""
    with two_gpus() as cuda:
        assert select_precision("auto", torch.device("cuda:1")) == torch.bfloat16
    assert cuda.calls == [("bf16", 1)]


def test_a_graph_is_captured_and_replayed_on_the_models_gpu():
    """Bug: it was captured on a stream of GPU 0, whichever GPU the model was on."""
    with two_gpus() as cuda:
        step = replayed(lambda: torch.ones(3), torch.device("cuda:1"))
        for _ in range(5):
            step()
    assert cuda.calls == [("capture on a stream of cuda:1", 1), ("replay", 1), ("replay", 1)]


def test_threads_capture_their_graphs_one_after_another():
    """Bug: a capture failed if another thread allocated memory or captured at the same time."""
    first_captures, second_comes = Event(), Event()

    def first() -> torch.Tensor:
        if cuda.is_capturing:
            first_captures.set()
            assert second_comes.wait(HANGS_S)
            time.sleep(0.05)  # for a capture that does not wait
        return torch.ones(3)

    with two_gpus() as cuda, ThreadPoolExecutor(1) as thread:
        device = torch.device("cuda:1")
        steps = [replayed(first, device), replayed(lambda: torch.ones(3), device)]
        for step in steps:
            for _ in range(3):
                step()
        captured = thread.submit(steps[0])
        assert first_captures.wait(HANGS_S)
        second_comes.set()
        steps[1]()
        captured.result()


def test_an_apple_gpu_is_refused_with_a_torch_that_computes_wrong_attention(monkeypatch, caplog):
    """Bug: torch up to 2.12 computes wrong attention on MPS, and cannot release its memory."""
    mps = torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps")
    )
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.12.1"))
    with pytest.raises(DeviceError, match=r"expected torch 2\.13 or later, got 2\.12\.1"):
        select_device("mps")
    assert select_device("auto") == CPU
    assert "it needs torch 2.13 or later" in caplog.text
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.13.0"))
    assert select_device("mps") == select_device("auto") == mps


def test_drawn_batches_are_contiguous(corpus):
    """Bug: strided batches were copied from pinned memory through pageable memory."""
    for part in step_on(CPU, corpus).draw(0)[:2]:
        assert part.is_contiguous()


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Count the graphs that torch.compile makes; they run uncompiled."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    torch.compiler.reset()
    yield counter
    torch.compiler.reset()


def test_a_run_that_is_shorter_than_the_compiler_is_not_compiled():
    """Bug: `shakespeare_gpu` compiled for 17 s of 58 s, which saved 13 s."""
    cuda, long = torch.device("cuda"), {"train__steps": 10**9, "train__batch_size": 997}
    short = long | {"train__minutes": 0.5}  # Bug: the steps before the plan decided
    cases: list[Any] = [({}, "off"), (long, "auto"), ({"train__compile": "on"}, "on")]
    for changes, mode in [*cases, (short, "off"), ({"train__minutes": 4.0}, "auto")]:
        config = with_compile_choice(small(**changes), model_on(CPU), cuda)
        assert config.train.compile == mode
        assert with_compile_choice(small(**changes), model_on(CPU), CPU) == small(**changes)


def test_a_run_that_repeats_another_compiles_as_that_one_did():
    """Bug: with minutes, the choice followed from estimated steps, its repeat from the planned."""
    repeated = small(train__plans=[[0, 11], [3, 7]], train__steps=7)
    chosen = with_compile_choice(repeated, model_on(CPU), torch.device("cuda"))
    assert chosen.train.compile == "auto"


@pytest.mark.filterwarnings("ignore")  # torch's own, of its compiler
def test_a_loaded_model_is_compiled_for_training(corpus, counter):
    """Bug: a resumed run compiled its model in evaluation mode, and again in its first step."""
    changes: dict[str, Any] = {"train__precision": "fp32", "model__dropout": 0.3}
    config = small(**changes, train__compile="on")
    step = build_step(config, model_on(CPU, **changes).eval(), CPU, SINGLE, corpus.train)
    compiled = counter.frame_count
    assert compiled > 0
    step(0)
    assert counter.frame_count == compiled


@pytest.mark.filterwarnings("ignore")
def test_every_model_compiles_one_block_for_each_window_length(corpus, counter):
    """Bug: whole models were compiled, with dynamic shapes, and not at all after 8 shapes."""
    for C in (12, 18, 24, 30, 36):
        changes = {"model__C": C, "model__n_layer": 2, "model__T": 12, "train__first_window": 4}
        counter.clear()
        step = step_on(CPU, corpus, **changes, train__compile="on")
        assert counter.frame_count == 2
        for i in (0, 1, 10):  # short windows, then long ones
            step(i)
        assert counter.frame_count == 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("V", [31, 1009])
def test_a_compiled_model_trains_the_weights_of_one_that_is_not(corpus, counter, V):
    """The compiled blocks share their parameters with the model that is evaluated and saved."""
    eager, compiled = (step_on(CPU, corpus, V=V, train__compile=mode) for mode in ("off", "on"))
    compiled_frames = counter.frame_count
    for i in range(3):
        eager(i), compiled(i)
    assert counter.frame_count == compiled_frames == 1
    for one, other in zip(tensors_of(eager), tensors_of(compiled), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore")
def test_an_ensemble_with_dropout_compiles_one_block(corpus, counter):
    """Bug: each member compiled its own block, because their generators differ; at most 8 did."""
    config = small(model__ensemble=3, model__dropout=0.3, train__compile="on")
    build_step(config, make_model(config.model, 31, seed=1), CPU, SINGLE, corpus.train)(0)
    assert counter.frame_count == 1


def test_the_recipe_compiles_no_model_to_measure_it(corpus, counter):
    """Bug: five or six models were compiled, which took longer than measuring them."""
    base = {"device": "cpu", "train": {"compile": "on", "precision": "fp32"}}
    tiny = {"model": {"n_layer": 1, "C": 8, "n_head": 1, "T": 8}}
    choose_config(corpus, Config.model_validate(base | tiny), 0.1, perf_counter)
    assert counter.frame_count == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"train__optimizer": "adamw"},
        {"train__accumulation": 3, "train__grad_clip": 0.1},
        {"model__dropout": 0.3, "model__positions": "learned"},
        {"model__dropout": 0.3, "model__character_dropout": 0.3},
        {"model__activation": "gelu"},
    ],
)
def test_steps_leave_the_weights_that_they_leave_on_a_cpu(corpus, pretend, changes):
    here, there = (step_on(device, corpus, **changes) for device in (CPU, pretend))
    for i in range(5):
        here.probe(i), there.probe(i)  # change nothing
        for one, other in zip(here(i), there(i), strict=True):
            torch.testing.assert_close(one, other.cpu())
    for one, other in zip(tensors_of(here), tensors_of(there), strict=True):
        torch.testing.assert_close(one, other)


def test_each_replayed_step_returns_its_own_loss(corpus, pretend, monkeypatch):
    """Bug: each returned the loss of the newest, whose number a CUDA graph writes over the old."""

    def as_graph(step, *_):
        outputs = []

        def replay():
            results = step()
            outputs[:] = outputs or results
            for output, result in zip(outputs, results, strict=True):
                output.copy_(result)
            return outputs

        return replay

    expected = step_on(pretend, corpus)
    monkeypatch.setattr("gpt.cuda_graph.replayed", as_graph)
    step = step_on(pretend, corpus)
    results = [step(i) for i in range(5)]
    assert step.read(results) == expected.read([expected(i) for i in range(5)])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_cpu_waits_for_no_step(corpus, pretend, optimizer):
    """It once did twice, for the loss and for the norm."""
    step = step_on(pretend, corpus, train__optimizer=optimizer, train__accumulation=2)
    with count_syncs() as syncs:
        for i in range(3):
            step(i)
        assert syncs() == 0


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_update_of_a_gradient_that_is_not_finite_is_skipped_on_the_device(
    corpus, pretend, optimizer, bad
):
    step = step_on(pretend, corpus, train__optimizer=optimizer, train__grad_clip=0.0)
    step(0)
    before = tensors_of(step)
    hook = step.model.norm.bias.register_hook(lambda gradient: gradient * bad)
    with count_syncs() as syncs:
        _, norm = step(1)
        assert syncs() == 0
    assert not norm.isfinite()
    for old, new in zip(before, tensors_of(step), strict=True):
        assert old.equal(new)
    hook.remove()
    step(1)
    assert not any(
        old.equal(new) for old, new in zip(before, tensors_of(step), strict=True) if old.ndim
    )


def test_a_large_vocabulary_takes_no_memory_for_all_logits_at_once(pretend, monkeypatch):
    """Bug: on an accelerator, a loss kept several tensors of all logits: 14 bytes for each logit.

    The gradients are those of a CPU, up to the order of additions.
    """
    V, rows = 1511, 37
    monkeypatch.setattr(linear_cross_entropy, "ACCELERATOR_LOGITS_AT_ONCE", rows * V)
    config = small(train__precision="fp32", train__grad_clip=0.0)
    ids = (np.arange(9973) ** 2 % V).astype(np.uint16)
    here, there = (
        build_step(config, model_on(device, V=V), device, SINGLE, ids) for device in (CPU, pretend)
    )
    with LargestTensor() as largest:
        there(0)
    assert largest.numbers == rows * V  # logits of one chunk of the 78 rows
    here(0)
    for one, other in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(other.grad.cpu(), one.grad, rtol=1e-4, atol=1e-6)


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that an operation in a `with` block returns."""

    numbers = 0

    def __torch_dispatch__(
        self, operation: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        results = operation(*args, **kwargs or {})
        for result in tree_iter(results):
            if isinstance(result, torch.Tensor):
                self.numbers = max(self.numbers, result.numel())
        return results


@pytest.mark.parametrize("ensemble", [1, 2])
def test_a_run_writes_what_it_writes_on_a_cpu_and_resumes(corpus, pretend, ensemble):
    changes: dict[str, Any] = {"train__precision": "fp32", "model__ensemble": ensemble}
    changes |= {"model__n_layer": 1, "train__steps": 5, "train__eval_every": 2}
    train_run(small(**changes), corpus, Path("cpu"))
    train_run(small(**changes, device="auto"), corpus, Path("whole"))
    stops = {"train__stop_at_val_loss": 99.0}
    train_run(small(**changes, **stops, device="auto"), corpus, Path("part"))
    assert metrics_of(Path("part"))[-1]["step"] == 2
    train_run(small(**changes, device="auto"), corpus, Path("part"), mode="resume")
    for ours, expected in zip(metrics_of(Path("whole")), metrics_of(Path("cpu")), strict=True):
        assert ours == pytest.approx(expected, rel=1e-6)
    cpu, whole, part = (
        read_checkpoint(Path(name), "last").weights for name in ("cpu", "whole", "part")
    )
    for name, weights in cpu.items():
        np.testing.assert_allclose(weights, whole[name], rtol=1e-5, atol=1e-7)
        assert (whole[name] == part[name]).all()


@pytest.mark.parametrize("make", [model_on, ensemble_on])
def test_an_engine_decodes_what_it_does_on_a_cpu_and_waits_once_for_each_character(pretend, make):
    """Texts of three lengths, prefilled, replaced, copied and dropped."""
    here, there = (TorchEngine(make(device), 3) for device in (CPU, pretend))
    for engine in (here, there):
        engine.prefill([0, 1, 2], [[1, 2, 3], [], [4]])
    with count_syncs() as syncs:
        for step in range(9):
            if step == 3:
                for engine in (here, there):
                    engine.prefill([0], [[5, 6]])
            if step == 5:
                for engine in (here, there):
                    engine.select([2, 1, 2])
            if step == 7:
                for engine in (here, there):
                    engine.select([2, 0])
            ids = [(3 * step + b) % 31 for b in range(2 if step >= 7 else 3)]
            np.testing.assert_allclose(there.decode(ids), here.decode(ids), rtol=1e-5, atol=1e-5)
            assert syncs() == step + 1


def test_a_character_is_decoded_without_deterministic_kernels(pretend):
    """Bug: CUDA graphs of older torch cannot record the deterministic scatter into the cache."""

    class Scatters(TorchDispatchMode):
        def __torch_dispatch__(
            self, operation: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if "scatter" in str(operation):
                modes.append(torch.are_deterministic_algorithms_enabled())
            return operation(*args, **kwargs or {})

    modes: list[bool] = []
    with computing_with("auto", deterministic=True):
        engine = TorchEngine(model_on(pretend), 2)
        engine.prefill([0, 1], [[1, 2, 3], [4]])
        with Scatters():
            engine.decode([5, 6])
        assert torch.are_deterministic_algorithms_enabled()
    assert modes
    assert not any(modes)


@pytest.mark.parametrize("make", [model_on, ensemble_on])
def test_the_cpu_waits_for_an_evaluation_once(pretend, make):
    """Bug: it waited for each model and forward pass, and a pass had only 4,096 characters."""
    ids = (np.arange(9973) ** 2 % 31).astype(np.uint8)
    model, passes = make(pretend), 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    members_of(model)[0].register_forward_pre_hook(count)
    with count_syncs() as syncs:
        loss = evaluate(model, ids)
        assert syncs() == 1
    assert passes == 2  # the windows of T characters, and the last, shorter one
    assert loss == pytest.approx(evaluate(make(CPU), ids), rel=1e-6)


def test_a_plan_ignores_the_steps_that_record_graphs():
    """Bug: on CUDA, they took half a second each, so a run of a minute ended after 11 steps."""
    now = iter([0.0, 5.0, 15.0, 17.0, 19.0])
    stopwatch = Stopwatch(lambda: next(now), {7: 3.0}, warmup=4)
    for steps, expected in ((1, 3.0), (3, 3.0), (2, 1.0), (2, 1.0)):
        stopwatch.lap(7, steps)
        stopwatch.settle()
        assert stopwatch.step_s(7) == expected


def test_an_evaluation_is_timed_on_a_full_pass(corpus, pretend):
    """Bug: 4,096 characters a thread were timed, few passes of which would occupy a GPU.

    Each pass takes a second here, whatever its size.
    """
    step, passes = step_on(pretend, corpus), 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    step.model.register_forward_pre_hook(count)
    stopwatch = Stopwatch(lambda: float(passes))
    val = (np.arange(8209) ** 2 % 31).astype(np.uint8)
    stopwatch.probe(lambda step: None, step, step.config, val, SINGLE)
    passes = 0
    evaluate(step.model, val)
    assert stopwatch.probed[CHARACTER] * (len(val) - 1) == pytest.approx(passes)
