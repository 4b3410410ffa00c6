"""The lesson `dropout`: what is dropped, how the rest is scaled, and that the mean stays."""

import math

import pytest
import torch

from gpt.lessons import head
from gpt.lessons.build import build_page
from gpt.lessons.dropout_by_hand import ScaledDropout, drop, loss_with
from gpt.lessons.trained import trained_model
from gpt.model.transformer import GPT, cross_entropy
from gpt.text.vocabulary import Vocabulary
from tests.conftest import small
from tests.test_model import shaken

SEED, DRAWS = 1337, 2003
TEXT = "the dog "


def table(words: str, parts: list[dict[str, object]] | None = None) -> torch.Tensor:
    parts = build_page("dropout", SEED).parts if parts is None else parts
    (found,) = [p["values"] for p in parts if words in str(p.get("table"))]
    return torch.tensor([[math.nan if x is None else x for x in row] for row in found])  # type: ignore[attr-defined]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_each_number_is_zero_with_probability_p_or_larger_by_its_inverse(p: float) -> None:
    """As many are zero as the binomial distribution allows, within five standard errors."""
    torch.manual_seed(1)
    x = torch.randn(7, 11)
    draws = ScaledDropout(p)(x.expand(DRAWS, 7, 11))
    kept = draws != 0
    torch.testing.assert_close(draws[kept], (x / (1 - p)).expand_as(draws)[kept])
    share = 1 - kept.float().mean(0)
    assert ((share - p).abs() <= 5 * math.sqrt(p * (1 - p) / DRAWS)).all()


def test_the_mean_over_many_draws_is_the_weight_without_dropout() -> None:
    """Within five standard errors; without the scale it is not."""
    torch.manual_seed(1)
    x, one = head.example(SEED)
    weights = one(x)[1][0].detach()
    draws = ScaledDropout(0.3)(weights.expand(DRAWS, 8, 8))
    error = weights * math.sqrt(0.3 / 0.7 / DRAWS)
    assert ((draws.mean(0) - weights).abs() <= 5 * error + 1e-7).all()
    unscaled = drop(weights.expand(DRAWS, 8, 8), 0.3)
    assert ((unscaled.mean(0) - weights).abs() > 5 * error).any()


def test_dropout_is_torchs_with_the_same_draws_and_nothing_in_evaluation() -> None:
    x = torch.randn(7, 11)
    torch.manual_seed(3)
    ours = ScaledDropout(0.3)(x)
    torch.manual_seed(3)
    torch.testing.assert_close(ours, torch.nn.Dropout(0.3)(x))
    assert ScaledDropout(0.3).eval()(x).equal(x)


def test_the_tables_show_draws_and_their_mean() -> None:
    x, *draws, mean, unscaled = table("three draws")
    for draw in draws:
        assert ((draw == 0) | (draw == 2 * x)).all()
    torch.testing.assert_close(mean, x, rtol=0.1, atol=0)
    torch.testing.assert_close(unscaled, x / 2, rtol=0.1, atol=0)
    weights = table("attention weights after dropout")
    assert weights[:, :-1].isnan().equal(torch.ones(8, 8).triu(1) == 1)
    torch.testing.assert_close(weights[:, :-1].nansum(1), weights[:, -1])


def test_the_loss_in_training_rises_with_p_and_the_model_is_left_as_it_was() -> None:
    model = shaken(GPT(small(model__dropout=0.2).model, 8))
    ids = torch.randint(8, (1, 13))
    with torch.no_grad():
        expected, logits = cross_entropy(model(ids)[:, :-1], ids[:, 1:]).item(), model(ids)
        assert loss_with(model, ids, 0.0) == pytest.approx(expected, rel=1e-5)
        assert loss_with(model, ids, 0.5) != pytest.approx(expected, rel=1e-3)
        assert model(ids).equal(logits)
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.2}


@pytest.mark.parametrize("text", ["t", TEXT])
def test_a_trained_models_losses_are_shown_where_there_is_a_next_character(text: str) -> None:
    vocabulary = Vocabulary.of("".join(sorted(set(TEXT))))
    model = shaken(GPT(small().model, len(vocabulary)))
    page = build_page("dropout", SEED, trained_model("run", model, vocabulary, 1, text))
    assert page.holds
    shown = [p for p in page.parts if "loss in nats" in str(p.get("table"))]
    assert len(shown) == (len(text) > 1)
    if shown:
        losses = table("loss in nats", page.parts)
        assert losses.shape == (1, 5)
