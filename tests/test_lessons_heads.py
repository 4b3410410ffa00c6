"""The lessons `heads` and `masks`: against torch's layers and Hugging Face's."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.lessons import heads, masks, small_models
from gpt.lessons.build import build_page
from gpt.lessons.head import Head, attend
from gpt.lessons.heads import FusedHeads
from gpt.model.attention import CausalSelfAttention
from tests.test_model import shaken

SEED = 1337


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lesson `masks` trains for moments; test_lessons_model.py has it train in full."""
    monkeypatch.setattr(small_models, "STEPS", 3)


def tables(lesson: str) -> dict[str, list[list[float | None]]]:
    return {p["table"]: p["values"] for p in build_page(lesson, SEED).parts if "table" in p}


def table(lesson: str, words: str) -> list[list[float | None]]:
    (found,) = [values for caption, values in tables(lesson).items() if words in caption]
    return found


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


@given(t=st.integers(1, 13))
def test_a_mask_made_for_T_is_cropped_to_what_came_in(t: int) -> None:
    """Window 13; heads x head_size and heads x value_size differ from the 3 channels."""
    fused = shaken(FusedHeads(3, 5, 7, 11, 13))
    x = torch.randn(2, 13, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(fused(x[:, :t]), fused(x)[:, :t], rtol=1e-4, atol=1e-5)


def test_total_variation_worked_out_by_hand() -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.0, 0.0, 1.0]])
    distances = [heads.total_variation(weights[0], row).item() for row in weights]
    assert distances == [0, 0.5, 1]


def test_a_mask_is_a_buffer_that_is_neither_trained_nor_saved() -> None:
    fused = FusedHeads(3, 5, 7, 11, 13)
    assert [name for name, _ in fused.named_buffers()] == ["future"]
    assert {name.split(".")[0] for name in fused.state_dict()} == {"qkv", "projection"}


def test_the_additive_mask_of_hugging_face_gives_the_same_weights() -> None:
    """As GPT-2 adds it there: 0, or the lowest float32."""
    q, k, v = torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 7)
    mask = masks.additive(masks.causal(11))
    assert mask.unique().tolist() == [torch.finfo(torch.float32).min, 0.0]
    out, weights = masks.attend_added(q, k, v, mask)
    expected, expected_weights = attend(q, k, v, causal=True)
    assert weights.equal(expected_weights)
    torch.testing.assert_close(out, expected)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(out, theirs, rtol=1e-4, atol=1e-5)


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


def test_a_query_that_may_attend_to_nothing_gets_equal_weights_or_nan() -> None:
    x, allowed = torch.randn(2, 11, 5), masks.causal(11)
    assert masks.attend_added(x, x, x, masks.additive(~allowed))[1][:, -1].eq(1 / 11).all()
    assert torch.full((4,), float("-inf")).softmax(-1).isnan().all()


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
