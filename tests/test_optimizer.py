"""AdamW, Muon and the schedule, against torch's AdamW, an SVD and figures worked out by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.config.schema import Config, ModelConfig
from gpt.config.train_config import TrainConfig
from gpt.model.transformer import GPT
from gpt.training.optimizer import AdamW, Muon, make_optimizers, orthogonalise
from gpt.training.schedule import Schedule
from tests.conftest import drawn


def tiny() -> GPT:
    config = ModelConfig(
        T=11, C=29, n_layer=2, n_head=5, head_size=14, value_size=17, positions="learned"
    )
    return GPT(config, 7)


def test_adamw_is_torchs():
    ours, theirs = (
        [torch.nn.Parameter(drawn(*shape)) for shape in [(5, 3), (7,)]] for _ in range(2)
    )
    mine = AdamW(ours, 0.3, (0.8, 0.95), weight_decay=0.2)
    reference = torch.optim.AdamW(theirs, lr=0.3, betas=(0.8, 0.95), weight_decay=0.2, fused=True)
    for step in range(13):
        lr_factor = 1 / (1 + step)
        for parameters in (ours, theirs):
            for i, p in enumerate(parameters):
                p.grad = drawn(*p.shape, seed=100 * i + step)
        reference.param_groups[0]["lr"] = lr_factor * 0.3
        mine.step(lr_factor)
        reference.step()
        assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


@settings(max_examples=50)
@given(
    height=st.integers(1, 37),
    width=st.integers(1, 37),
    scale=st.floats(1e-6, 1e6),
    seed=st.integers(0, 99),
)
def test_orthogonalise_keeps_the_directions_and_evens_out_their_lengths(height, width, scale, seed):
    matrices = scale * drawn(3, height, width, seed=seed)
    u, singular, vt = torch.linalg.svd(matrices.double(), full_matrices=False)
    new = u.mT @ orthogonalise(matrices).double() @ vt.mT  # diagonal: its singular values
    lengths = new.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(new, torch.diag_embed(lengths), rtol=0, atol=2e-4)
    assert (lengths < 1.1).all()
    assert (lengths[singular > 0.021 * singular.norm(dim=-1, keepdim=True)] > 0.9).all()


@pytest.mark.parametrize("weight", [0.95, 0.7])
def test_muon_worked_out_by_hand(weight):
    p = torch.nn.Parameter(drawn(14, 3))
    muon = Muon([p], [[5, 7, 2]], learning_rate=0.1, momentum=weight, weight_decay=0.5)
    momentum, expected = torch.zeros(14, 3), p.detach().clone()
    squares = [torch.zeros(5), torch.zeros(7), torch.zeros(3)]  # of the longer side
    for step, lr_factor in enumerate((0.5, 1.0, 0.2)):
        p.grad = drawn(14, 3, seed=step + 1)
        muon.step(lr_factor)
        momentum = weight * momentum + (1 - weight) * p.grad
        direction = (1 - weight) * p.grad + weight * momentum
        rate = lr_factor * 0.1
        expected *= 1 - rate * 0.5
        for i, rows in enumerate([slice(0, 5), slice(5, 12), slice(12, 14)]):
            part = orthogonalise(direction[rows][None])[0]
            neurons = part.mT if i == 2 else part  # tall
            squares[i] = 0.95 * squares[i] + 0.05 * (neurons**2).mean(1)
            even = neurons / squares[i].sqrt()[:, None]
            even *= neurons.norm() / even.norm()
            longer = max(1.0, len(part) / 3) ** 0.5
            expected[rows] -= rate * longer * (even.mT if i == 2 else even)
        torch.testing.assert_close(p.detach(), expected)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_only_matrices_decay(optimizer):
    """And beside Muon only those of the blocks. Without a gradient, decay alone moves weights."""
    model = tiny()
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    rates = {"learning_rate": 0.1, "muon_learning_rate": 0.1, "weight_decay": 0.3}
    config = TrainConfig.model_validate({"optimizer": optimizer} | rates)
    for each in make_optimizers(model, config):
        each.step(0.5)
    for name, parameter in model.named_parameters():
        decays = parameter.ndim == 2 and (optimizer == "adamw" or name.startswith("blocks."))
        expected = 1 - 0.5 * 0.1 * 0.3 if decays else 1.0
        torch.testing.assert_close(parameter.detach(), torch.full(parameter.shape, expected))


def test_muon_takes_queries_keys_and_values_of_a_matrix_each_for_itself():
    model = tiny()
    for parameter in model.parameters():
        parameter.grad = drawn(*parameter.shape)
    qkv = model.blocks[0].attention.qkv.weight
    parts = qkv.detach().clone().split([70, 70, 85])
    assert qkv.grad is not None
    for part, gradient in zip(parts, qkv.grad.split([70, 70, 85]), strict=True):
        part.grad = gradient.clone()
        Muon([part], [[len(part)]], 0.02, 0.95, 0.1).step(1.0)
    for each in make_optimizers(model, TrainConfig(muon_learning_rate=0.02, weight_decay=0.1)):
        each.step(1.0)
    torch.testing.assert_close(qkv.detach(), torch.cat(parts))


def schedule_of(**train: float) -> Schedule:
    return Schedule(Config.model_validate({"train": train}))


def test_the_learning_rate_worked_out_by_hand():
    schedule = schedule_of(steps=30, warmup_steps=10, learning_rate=1.0, min_learning_rate=0.1)
    assert [schedule.lr(step) for step in (0, 4, 9, 10)] == [0.1, 0.5, 1.0, 1.0]
    assert schedule.lr(15) == pytest.approx(0.775)
    assert schedule.lr(20) == pytest.approx(0.55)
    assert schedule.lr(30) == pytest.approx(0.1)


def test_the_learning_rate_of_a_later_phase_worked_out_by_hand():
    """It rises from the floor to what one run of 60 steps has half-way, and falls again."""
    schedule = schedule_of(steps=30, warmup_steps=0, learning_rate=1.0, min_learning_rate=0.0)
    schedule.replan(30, 60)
    assert schedule.lr(29) == pytest.approx(1 / 30)
    schedule.warmup_steps = 3  # as long as the rise may be: a tenth of the 30 new steps
    rise = [schedule.lr(step) for step in (30, 31, 32)]
    peak = 1 - (30 - 3) / (60 - 3)
    falls = [peak * (1 - i / 30) for i in range(3)]
    assert rise == pytest.approx([falls[0] / 3, falls[1] * 2 / 3, falls[2]])
    assert schedule.lr(45) == pytest.approx(peak / 2)
