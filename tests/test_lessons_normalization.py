"""The lesson `normalization`: the notebook's figures, and BatchNorm and LayerNorm as torch's."""

import pytest
import torch

from gpt.lessons import normalization
from gpt.lessons.build import build_page
from gpt.lessons.normalization import BatchNorm, LayerNorm, statistics

SEED = 1337


def table(words: str) -> list[list[float | str]]:
    parts = build_page("normalization", SEED).parts
    (found,) = [p["values"] for p in parts if words in p.get("table", "")]
    return found  # type: ignore[no-any-return]


def test_the_notebooks_figures_of_column_0_and_row_0() -> None:
    """Of BatchNorm and of LayerNorm: each normalises what the other does not."""
    printed = [[f"{abs(x):.4f}" for x in row] for row in table("mean and standard deviation")]
    assert printed == [
        ["0.1392", "0.8899", "0.0409", "1.0476"],
        ["0.0000", "1.0000", "0.0411", "1.0431"],
        ["0.1469", "0.8803", "0.0000", "1.0000"],
    ]
    x = normalization.example(SEED)
    assert printed[2] == [f"{abs(float(s)):.4f}" for s in statistics(LayerNorm(100)(x))]


@pytest.mark.parametrize("eps", [1e-5, 0.1, 3.0])
def test_normalisation_with_gamma_beta_and_eps_is_torchs(eps: float) -> None:
    x = 3 * torch.randn(13, 7) + 2
    pairs: list[tuple[BatchNorm | LayerNorm, torch.nn.BatchNorm1d | torch.nn.LayerNorm]] = [
        (BatchNorm(7, eps=eps, correction=0), torch.nn.BatchNorm1d(7, eps=eps)),
        (LayerNorm(7, eps=eps, correction=0), torch.nn.LayerNorm(7, eps=eps)),
    ]
    for ours, theirs in pairs:
        for mine, parameter in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.nn.init.normal_(parameter)
            mine.copy_(parameter.detach())
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_gamma_and_beta_are_the_parameters_and_running_statistics_are_not() -> None:
    norm = BatchNorm(7, correction=0)
    theirs = torch.nn.BatchNorm1d(7)
    assert [p.shape for p in norm.parameters()] == [p.shape for p in theirs.parameters()]
    before = [p.clone() for p in norm.parameters()]
    norm(torch.randn(13, 7))
    assert all(p.equal(old) for p, old in zip(norm.parameters(), before, strict=True))
    assert not norm.running_mean.equal(torch.zeros(7))
    assert not {id(p) for p in norm.parameters()} & {id(norm.running_mean), id(norm.running_var)}


def test_running_statistics_worked_out_by_hand_serve_in_evaluation_alone() -> None:
    """A tenth of the way to the batch's mean 3 and unbiased variance 2, from 0 and 1."""
    norm, x = BatchNorm(1), torch.tensor([[2.0], [4.0]])
    torch.testing.assert_close(norm(x).flatten(), torch.tensor([-1.0, 1.0]) / 2**0.5)
    assert norm.running_mean.item() == pytest.approx(0.3)
    assert norm.running_var.item() == pytest.approx(1.1)
    norm.training = False
    torch.testing.assert_close(norm(x[:1]).item(), (2 - 0.3) / (1.1 + 1e-5) ** 0.5)
    assert norm.running_mean.item() == pytest.approx(0.3)  # evaluation changes nothing


def test_without_eps_a_row_of_equal_numbers_is_nan() -> None:
    sevens = torch.full((100,), 7.0)
    assert LayerNorm(100, eps=0.0)(sevens).isnan().all()
    assert LayerNorm(100)(sevens).eq(0).all()
