"""The lessons `heads`, `masks`, `dropout` and `normalization`: against torch and Hugging Face."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.lessons import head, heads, masks, normalization, small_models
from gpt.lessons.build import build_page
from gpt.lessons.dropout_by_hand import ScaledDropout, drop, loss_with
from gpt.lessons.head import Head
from gpt.lessons.heads import FusedHeads
from gpt.lessons.normalization import BatchNorm, LayerNorm, statistics
from gpt.lessons.trained import trained_model
from gpt.model.attention import CausalSelfAttention
from gpt.model.transformer import GPT, cross_entropy
from gpt.text.vocabulary import Vocabulary
from tests.conftest import small
from tests.test_model import shaken

SEED = 1337


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lesson `masks` trains for moments; test_lessons_model.py has it train in full."""
    monkeypatch.setattr(small_models, "STEPS", 3)


def table(lesson: str, words: str) -> list[list[Any]]:
    parts = build_page(lesson, SEED).parts
    (found,) = [part["values"] for part in parts if words in part.get("table", "")]
    return found  # type: ignore[no-any-return]


def test_many_heads_equal_torchs_multihead_attention() -> None:
    fused = shaken(FusedHeads(35, 5, 7, 7, 13))
    x = torch.randn(3, 11, 35)
    theirs = torch.nn.MultiheadAttention(35, 5, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": fused.qkv.weight,
            "in_proj_bias": torch.zeros(len(fused.qkv.weight)),
            "out_proj.weight": fused.projection.weight,
            "out_proj.bias": fused.projection.bias,
        }
    )
    expected, _ = theirs(x, x, x, attn_mask=torch.ones(11, 11).triu(1) == 1)
    torch.testing.assert_close(fused(x), expected, rtol=1e-4, atol=1e-5)


def test_total_variation_worked_out_by_hand() -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.0, 0.0, 1.0]])
    distances = [heads.total_variation(weights[0], row).item() for row in weights]
    assert distances == [0, 0.5, 1]


def test_a_mask_is_a_buffer_that_is_neither_trained_nor_saved() -> None:
    fused = FusedHeads(3, 5, 7, 11, 13)
    assert [name for name, _ in fused.named_buffers()] == ["future"]
    assert {name.split(".")[0] for name in fused.state_dict()} == {"qkv", "projection"}


def test_the_additive_mask_is_the_one_that_hugging_faces_gpt2_adds() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2Model(
        transformers.GPT2Config(
            vocab_size=37, n_embd=10, n_layer=1, n_head=2, attn_implementation="eager"
        )
    )
    added: list[Tensor] = []
    theirs.h[0].attn.register_forward_pre_hook(
        lambda _module, _arguments, named: added.append(named["attention_mask"]), with_kwargs=True
    )
    theirs(torch.randint(37, (3, 11)))
    assert added[0][0, 0].equal(masks.additive(masks.causal(11)))


def test_the_causality_test_catches_an_inverted_mask_and_passes_what_is_causal() -> None:
    """Every weight row of the inverted mask sums to 1, and no shape is wrong."""
    one = Head(5, 3)
    x = torch.randn(2, 11, 5)

    wrong = masks.InvertedHead(5, 3)
    right, inverted = (masks.influence(lambda x, h=h: h(x)[0], x) for h in (one, wrong))
    assert right.triu(1).eq(0).all()
    assert right.tril()[torch.ones(11, 11).tril() == 1].gt(0).all()
    assert inverted.triu(1)[:-1].amax(1).gt(0).all()  # every row but the last sees its future
    production = CausalSelfAttention(ModelConfig(T=11, C=10, n_head=5, head_size=6))
    assert masks.influence(shaken(production), torch.randn(2, 11, 10)).triu(1).eq(0).all()


def test_influence_worked_out_by_hand() -> None:
    """The sum of the past, of numbers that are negated one at a time: twice each."""
    x = torch.tensor([1.0, 3.0, 5.0]).view(1, 3, 1)
    changes = masks.influence(lambda x: x.cumsum(1), x)
    assert changes.tolist() == [[2, 0, 0], [2, 6, 0], [2, 6, 10]]


def test_cross_attention_attends_to_a_second_text_of_another_length() -> None:
    """Its table was once the first rows of the encoder's self-attention: one text for both."""
    weights = torch.tensor(table("masks", "weights of cross-attention"))
    assert weights.shape == (3, 5)
    torch.testing.assert_close(weights.sum(1), torch.ones(3))
    checks = {p["check"]: p for p in build_page("masks", SEED).parts if "check" in p}
    assert checks["the output, attending to the second text or to x"]["relation"] == "differ"
    one = Head(7, 7, causal=False)
    x, context = torch.randn(3, 11, 7), torch.randn(3, 13, 7)
    theirs = torch.nn.MultiheadAttention(7, 1, batch_first=True, bias=False)
    weights_of = [getattr(one, name).weight for name in ("query", "key", "value")]
    theirs.load_state_dict(
        {"in_proj_weight": torch.cat(weights_of), "out_proj.weight": torch.eye(7)}
    )
    expected, expected_weights = theirs(x, context, context)
    output, weights = one(x, context)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("lesson", "words"),
    [
        ("head", "a directed graph"),
        ("masks", "An encoder (BERT) has no mask"),
        ("masks", "A decoder (GPT, the model of this program) has the causal mask"),
        ("masks", "An encoder-decoder"),
        ("masks", "generates text in an autoregressive way"),
    ],
)
def test_what_the_notebooks_say_in_words_is_on_the_page(lesson: str, words: str) -> None:
    assert words in str(build_page(lesson, SEED).parts)


# --- dropout ---


DRAWS = 2003
TEXT = "the dog "


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


def test_the_tables_show_draws_and_their_mean() -> None:
    x, *draws, mean, unscaled = torch.tensor(table("dropout", "three draws"))
    for draw in draws:
        assert ((draw == 0) | (draw == 2 * x)).all()
    torch.testing.assert_close(mean, x, rtol=0.1, atol=0)
    torch.testing.assert_close(unscaled, x / 2, rtol=0.1, atol=0)
    for t, (*weights, total) in enumerate(table("dropout", "attention weights after dropout")):
        assert [weight is None for weight in weights] == [s > t for s in range(8)]
        assert sum(weights[: t + 1]) == pytest.approx(total, abs=1e-6)


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
    shown = [p["values"] for p in page.parts if "loss in nats" in str(p.get("table"))]
    assert [len(losses) for (losses,) in shown] == [5] * (len(text) > 1)


# --- normalization ---


def test_the_notebooks_figures_of_column_0_and_row_0() -> None:
    """BatchNorm normalises what LayerNorm does not, and the reverse."""
    values = table("normalization", "mean and standard deviation")
    printed = [[f"{abs(x):.4f}" for x in row] for row in values]
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
