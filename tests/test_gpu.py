"""What only a CUDA device can show; skipped, saying so, where there is none."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from gpt.cuda_graph import EAGER_STEPS
from gpt.distributed import SINGLE
from gpt.evaluation.loss import evaluate
from gpt.model.attention import CausalSelfAttention
from gpt.model.dropout import set_generator
from gpt.model.ensemble import make_model
from gpt.model.transformer import GPT
from gpt.runs.read import read_checkpoint
from gpt.runs.weights import load_model
from gpt.sampling.generate import generate_text
from gpt.sampling.torch_engine import TorchEngine
from gpt.training.members import build_step
from gpt.training.start import train_run
from tests.conftest import small

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.pictures,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning"),  # torch's compiler
]


@pytest.mark.parametrize("compile_", ["off", "on"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_run_learns_and_its_checkpoint_samples_on_both_devices(corpus, compile_, precision):
    config = small(
        device="cuda", train__compile=compile_, train__precision=precision, train__steps=60,
        train__learning_rate=1e-2,
    )  # fmt: skip
    outcome = train_run(config, corpus, Path("r"))
    assert outcome.best_val_loss < 3.0
    for device in ("cpu", "cuda"):
        data = read_checkpoint(Path("r"), "best")
        best = load_model(data, torch.device(device))
        assert len(generate_text(best, data.vocabulary, "the ", length=29, seed=3)) == 29
        expected = pytest.approx(outcome.best_val_loss, rel=0.02)
        assert evaluate(best, corpus.val) == expected


@pytest.mark.parametrize("ensemble", [1, 2])
def test_a_recorded_step_computes_what_its_operations_compute(corpus, monkeypatch, ensemble):
    """Bug: every replayed step returned the loss of the newest one.

    There are dropout and 25 steps with short windows, 5 with long ones; graphs replay 22 and 2.
    """
    config = small(
        device="cuda", model__dropout=0.3, train__steps=30, model__T=12, train__first_window=4,
        train__precision="fp32", train__compile="off",
    )  # fmt: skip
    losses = []
    for eager_steps in (EAGER_STEPS, 1000):
        monkeypatch.setattr("gpt.cuda_graph.EAGER_STEPS", eager_steps)
        model = make_model(config.model, 31, seed=1).cuda()
        step = build_step(config, model, torch.device("cuda"), SINGLE, corpus.train)
        losses.append(step.read([step(i) for i in range(30)]))
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-3, atol=1e-4)


def test_attention_weights_are_dropped_by_the_seed():
    """The mean output over many draws is the output without dropout."""
    config = small(model__dropout=0.3).model
    attention = CausalSelfAttention(config)
    torch.nn.init.normal_(attention.projection.weight, std=0.3)
    x = torch.randn(1, 13, 24, generator=torch.Generator().manual_seed(1))
    expected, many = attention.eval()(x)[0], x.expand(2003, 13, 24).cuda()
    attention.cuda().train()
    outputs = []
    for seed in (1, 1, 2):
        masks = torch.Generator(many.device).manual_seed(seed)
        set_generator(attention, masks)
        outputs.append(attention(many))
    assert outputs[0].equal(outputs[1])
    assert not outputs[0].equal(outputs[2])
    error = outputs[0].std(0).cpu() / 2003**0.5
    assert ((outputs[0].mean(0).cpu() - expected).abs() <= 5 * error + 1e-4).all()


def test_a_recorded_step_gives_the_logits_of_the_whole_text():
    """Texts of three lengths, read past the recording, replaced, and dropped."""
    net = GPT(small().model, 11, torch.Generator().manual_seed(1))
    torch.nn.init.normal_(net.head.weight)
    engine = TorchEngine(deepcopy(net).cuda(), 3)
    texts: list[list[int]] = [[1, 2, 3], [], [4]]
    engine.prefill([0, 1, 2], texts)
    for step in range(9):
        if step == 6:
            texts[0] = [5, 6]
            engine.prefill([0], [texts[0]])
        if step == 8:
            texts = [texts[2], texts[0]]
            engine.select([2, 0])
        new = [(3 * step + b) % 11 for b in range(len(texts))]
        texts = [[*text, id_] for text, id_ in zip(texts, new, strict=True)]
        got = torch.from_numpy(engine.decode(new))
        expected = torch.stack([net(torch.tensor([text]))[0, -1] for text in texts])
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
