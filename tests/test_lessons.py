"""The lessons: the notebooks' figures to the printed digit, and each form against the others."""

import json
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.lessons import (
    averaging,
    head,
    heads,
    scaling,
)
from gpt.lessons.build import build_page
from gpt.lessons.head import Head, attend
from gpt.lessons.lesson_page import Page
from gpt.model.attention import CausalSelfAttention

SEED = 1337
Gpt = Callable[..., tuple[int, str, str]]


def printed(tensor: Tensor | float) -> object:
    """A tensor's numbers as four printed digits."""
    values = torch.as_tensor(tensor).detach()
    return json.loads(json.dumps(values.tolist()), parse_float=lambda x: f"{float(x):.4f}")


def digits(*rows: str) -> object:
    """`.18 -.07` -> ["0.1800", "-0.0700"]: figures as the notebooks print them."""
    numbers = [[f"{float(x):.4f}" for x in row.split()] for row in rows]
    return numbers if len(numbers) > 1 else numbers[0]


def table(page: Page, caption: str) -> list[list[str | None]]:
    """The printed cells of the page's table whose caption begins so."""
    part = next(part for part in page.parts if part.get("table", "").startswith(caption))
    return [[cell if cell is None else f"{cell:.4f}" for cell in row] for row in part["values"]]


# --- the notebooks' figures ---


@pytest.mark.parametrize("form", [averaging.by_loop, averaging.by_matmul, averaging.by_softmax])
def test_the_averages_of_the_past(form: Callable[[Tensor], Tensor]) -> None:
    assert printed(form(averaging.example(SEED))[0]) == digits(
        ".1808 -.0700", "-.0894 -.4926", ".1490 -.3199", ".3504 -.2238",
        ".3525 .0545", ".0688 -.0396", ".0927 -.0682", "-.0341 .1332",
    )  # fmt: skip


def test_all_rows_of_the_averaging_weights() -> None:
    page = build_page("averaging", SEED)
    assert table(page, "the attention weights") == [
        [f"{1 / (t + 1):.4f}"] * (t + 1) + [None] * (7 - t) for t in range(8)
    ]
    assert printed(averaging.causal_softmax(torch.zeros(8, 8))) == digits(
        "1 0 0 0 0 0 0 0",
        ".5 .5 0 0 0 0 0 0",
        ".3333 .3333 .3333 0 0 0 0 0",
        ".25 .25 .25 .25 0 0 0 0",
        ".2 .2 .2 .2 .2 0 0 0",
        ".1667 .1667 .1667 .1667 .1667 .1667 0 0",
        ".1429 .1429 .1429 .1429 .1429 .1429 .1429 0",
        ".125 .125 .125 .125 .125 .125 .125 .125",
    )


def test_one_causal_head() -> None:
    x, one = head.example(SEED)
    output, weights = one(x)
    assert output.shape == (4, 8, 16)
    assert printed(weights[0, -1]) == digits(".1046 .1260 .0922 .0906 .1476 .1588 .1432 .1371")
    assert printed(weights[0, 1]) == digits(".5221 .4779 0 0 0 0 0 0")


def test_why_divide_by_the_root_of_head_size() -> None:
    q, k = scaling.example(SEED)
    variances = [
        q.var(),
        k.var(),
        scaling.raw_scores(q, k).var(),
        scaling.scaled_scores(q, k).var(),
    ]
    assert printed(torch.stack(variances)) == digits("1.0449 1.0700 17.4690 1.0918")
    scores = torch.tensor([0.1, -0.2, 0.3, -0.2, 0.5])
    assert printed(scores.softmax(-1)) == digits(".1925 .1426 .2351 .1426 .2872")
    assert printed((8 * scores).softmax(-1)) == digits(".0326 .0030 .1615 .0030 .8000")


@pytest.mark.parametrize(("dimension", "notebook"), [(5, 5.24), (100, 100.4)])
def test_the_variance_of_a_product_is_its_dimension(dimension: int, notebook: float) -> None:
    """The notebook's draws had no seed, so both figures are held against the theory.

    The variance of 1,000 draws of variance d and near-normal shape has a standard error of
    d * sqrt(2 / 1000), a little more at d 5; five of them are allowed.
    """
    raw, scaled = scaling.variance_of_products(dimension, 1000, SEED)
    error = 5 * math.sqrt(2 / 1000)
    assert raw == pytest.approx(dimension, rel=error)
    assert notebook == pytest.approx(dimension, rel=error)
    assert scaled == pytest.approx(raw / dimension)


SIX_WORDS_SCORES = digits(
    ".9231 1.3545 1.3241 .7910 .4032 1.1330",
    "1.2705 1.8524 1.8111 1.0795 .5577 1.5440",
    "1.2544 1.8284 1.7877 1.0654 .5508 1.5238",
    ".6973 1.0167 .9941 .5925 .3061 .8475",
    ".6114 .8819 .8626 .5121 .2707 .7307",
    ".8995 1.3165 1.2871 .7682 .3937 1.0996",
)
SIX_WORDS_CONTEXT = digits(
    ".2996 .8053", ".3061 .8210", ".3058 .8203", ".2948 .7939", ".2927 .7891", ".2990 .8040"
)
SIX_WORDS_CONTEXT_OF_LAYERS = digits(
    "-.0739 .0713", "-.0748 .0703", "-.0749 .0702", "-.0760 .0685", "-.0763 .0679", "-.0754 .0693"
)


def test_self_attention_with_trainable_weights() -> None:
    x, by_hand, linear = head.X, head.by_parameters(), head.by_layers()
    output, weights = by_hand(x)
    assert printed(output) == SIX_WORDS_CONTEXT
    assert printed(scaling.raw_scores(x @ by_hand.query, x @ by_hand.key)) == SIX_WORDS_SCORES
    assert printed(weights[1]) == digits(".1500 .2264 .2199 .1311 .0906 .1820")
    assert printed(linear(x)[0]) == SIX_WORDS_CONTEXT_OF_LAYERS
    biased = Head(3, 2, bias=True, causal=False)
    assert [name for name, _ in biased.named_parameters()].count("query.bias") == 1


@pytest.mark.parametrize("seed", [3, SEED])
def test_the_six_words_are_worked_through_whatever_the_seed(seed: int) -> None:
    page = build_page("head", seed)

    query, divided, weights = table(page, "the query of 'journey'")
    assert query == SIX_WORDS_SCORES[1]  # type: ignore[index]
    assert divided == digits(".8984 1.3098 1.2806 .7633 .3944 1.0918")
    assert weights == digits(".1500 .2264 .2199 .1311 .0906 .1820")
    for caption, expected in (
        ("context vectors: weights @ V", SIX_WORDS_CONTEXT),
        ("context vectors of linear layers", SIX_WORDS_CONTEXT_OF_LAYERS),
    ):
        assert [*map(list, zip(*table(page, caption), strict=True))] == expected


def test_a_sharp_softmax_has_no_gradient() -> None:
    scores = torch.tensor([0.1, -0.2, 0.3, -0.2, 0.5])
    norms = [float(scaling.jacobian(n * scores).norm()) for n in (1, 8, 32)]
    assert printed(torch.tensor(norms)) == digits(".4033 .2825 .0033")
    assert table(build_page("scaling", SEED), "norm of softmax's Jacobian") == [printed(norms)]


def test_many_heads_in_one_matrix_product_with_the_notebooks_shapes() -> None:
    """Window 16, embedding 16, 8 heads of key size 32, a value size of its own, dropout .1."""
    x, _ = heads.example(SEED)
    sizes = {"T": 16, "C": 16, "n_head": 8, "head_size": 32, "value_size": 24, "dropout": 0.1}
    attention = CausalSelfAttention(ModelConfig.model_validate(sizes)).train()
    assert attention(x).shape == (2, 16, 16)
    assert attention(x[:, :5]).shape == (2, 5, 16)  # any T up to the window
    assert not attention(x).equal(attention(x))  # dropout is at work
    attention.eval()
    torch.testing.assert_close(attention(x)[:, :5], attention(x[:, :5]))


# --- each form against the others ---

sizes = st.integers(1, 7)


@given(B=sizes, T=sizes, C=sizes, seed=st.integers(0, 999))
def test_loop_equals_matmul_equals_softmax(B: int, T: int, C: int, seed: int) -> None:
    x = torch.randn(B, T, C, generator=torch.Generator().manual_seed(seed))
    loop = averaging.by_loop(x)
    torch.testing.assert_close(averaging.by_matmul(x), loop, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(averaging.by_softmax(x), loop, rtol=1e-4, atol=1e-5)


@given(T=sizes, d_in=sizes, hs=sizes, vs=sizes, bias=st.booleans())
def test_a_head_without_queries_averages_its_values(
    T: int, d_in: int, hs: int, vs: int, bias: bool
) -> None:
    one = Head(d_in, hs, vs, bias=bias)
    for parameter in one.query.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.randn(2, T, d_in)
    expected = averaging.by_loop(one.value(x))
    torch.testing.assert_close(one(x)[0], expected, rtol=1e-4, atol=1e-5)


def test_attend_equals_torchs_attention() -> None:
    q, k, v = torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 7)
    for causal in (True, False):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.testing.assert_close(attend(q, k, v, causal=causal)[0], expected)


def test_the_largest_entropy_is_that_of_the_averaging_weights() -> None:
    weights = averaging.causal_softmax(torch.zeros(11, 11))
    assert scaling.max_entropy(11) == pytest.approx(float(scaling.entropy(weights).mean()))


def test_entropy_worked_out_by_hand() -> None:
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0, 0, 0], [0.5, 0.25, 0.25, 0]])
    assert scaling.entropy(weights).tolist() == pytest.approx([2.0, 0.0, 1.5])
