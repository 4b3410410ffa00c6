"""The lessons: the notebooks' figures to the printed digit, and each form against the others."""

import json
import math
import re
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.lessons import (
    LESSONS,
    averaging,
    block,
    head,
    heads,
    model,
    normalization,
    positions,
    scaling,
)
from gpt.lessons.build import build_page
from gpt.lessons.head import Head, ParameterHead, attend
from gpt.lessons.heads import FusedHeads, ListOfHeads, take_apart
from gpt.lessons.page import Page
from gpt.lessons.render import render
from gpt.lessons.trained import Trained, trained_model
from gpt.model.attention import CausalSelfAttention
from gpt.model.transformer import GPT, Block
from gpt.runs.checkpoint import read_checkpoint
from gpt.runs.model import load_model
from gpt.text.corpus import load_corpus
from gpt.text.sources import open_text
from gpt.training.trainer import train
from tests.conftest import small
from tests.test_model import shaken

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


# --- the notebooks' figures ---


@pytest.mark.parametrize("form", [averaging.by_loop, averaging.by_matmul, averaging.by_softmax])
def test_the_averages_of_the_past(form: Callable[[Tensor], Tensor]) -> None:
    assert printed(form(averaging.example(SEED))[0]) == digits(
        ".1808 -.0700", "-.0894 -.4926", ".1490 -.3199", ".3504 -.2238",
        ".3525 .0545", ".0688 -.0396", ".0927 -.0682", "-.0341 .1332",
    )  # fmt: skip


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


def test_normalisation_from_scratch() -> None:
    x = normalization.example(SEED)
    out = normalization.BatchNorm(100)(x)
    assert [f"{abs(out[:, 0].mean()):.4f}", f"{out[:, 0].std():.4f}"] == ["0.0000", "1.0000"]
    assert [f"{out[0].mean():.4f}", f"{out[0].std():.4f}"] == ["0.0411", "1.0431"]
    out = normalization.LayerNorm(100)(x)
    assert [f"{abs(out[0].mean()):.4f}", f"{out[0].std():.4f}"] == ["0.0000", "1.0000"]


def test_self_attention_with_trainable_weights() -> None:
    x = torch.tensor(
        [
            *([0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64]),
            *([0.22, 0.58, 0.33], [0.77, 0.25, 0.10], [0.05, 0.80, 0.55]),
        ]
    )
    torch.manual_seed(123)
    by_hand = ParameterHead(3, 2)
    output, weights = by_hand(x)
    assert printed(output) == digits(
        ".2996 .8053", ".3061 .8210", ".3058 .8203", ".2948 .7939", ".2927 .7891", ".2990 .8040"
    )
    scores = scaling.raw_scores(x @ by_hand.query, x @ by_hand.key)
    assert printed(scores[1]) == digits("1.2705 1.8524 1.8111 1.0795 .5577 1.5440")
    assert printed(weights[1]) == digits(".1500 .2264 .2199 .1311 .0906 .1820")
    linear = Head(3, 2, causal=False)
    for name in ("query", "key", "value"):
        getattr(linear, name).weight.data.copy_(getattr(by_hand, name).T)
    torch.testing.assert_close(linear(x)[0], output)
    biased = Head(3, 2, bias=True, causal=False)
    assert [name for name, _ in biased.named_parameters()].count("query.bias") == 1


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


def test_cross_attention_takes_queries_from_one_text_and_keys_and_values_from_another() -> None:
    one = Head(5, 3, 7, causal=False)
    x, context = torch.randn(2, 11, 5), torch.randn(2, 13, 5)
    output, weights = one(x, context)
    assert (output.shape, weights.shape) == ((2, 11, 7), (2, 11, 13))
    for b in range(2):
        for t in range(11):
            scores = torch.stack([one.query(x[b, t]) @ one.key(c) for c in context[b]]) / 3**0.5
            expected = sum(
                w * one.value(c) for w, c in zip(scores.softmax(0), context[b], strict=True)
            )
            torch.testing.assert_close(output[b, t], expected, rtol=1e-4, atol=1e-5)


def test_attend_equals_torchs_attention() -> None:
    q, k, v = torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 7)
    for causal in (True, False):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.testing.assert_close(attend(q, k, v, causal=causal)[0], expected)


def test_a_list_of_heads_equals_the_fused_product_equals_production() -> None:
    config = ModelConfig(
        T=11, C=29, n_head=5, head_size=14, value_size=17, qk_norm=False, positions="learned"
    )
    production = shaken(CausalSelfAttention(config))
    fused = FusedHeads(29, 5, 14, 17)
    fused.qkv.load_state_dict(production.qkv.state_dict())
    fused.projection.load_state_dict(production.projection.state_dict())
    apart = take_apart(production)
    assert isinstance(apart, ListOfHeads)
    x = torch.randn(3, 11, 29)
    torch.testing.assert_close(apart(x), fused(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fused(x), production(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("where", ["learned", "rotary"])
def test_the_model_by_hand_equals_the_production_model(bias: bool, where: str) -> None:
    config = ModelConfig.model_validate(
        {"T": 11, "C": 29, "n_layer": 3, "n_head": 5, "head_size": 14, "value_size": 17}
        | {"qkv_bias": bias, "positions": where}
    )
    production = shaken(GPT(config, 37))
    ids = torch.randint(37, (3, 7))
    by_hand = model.by_hand(production, ids)
    torch.testing.assert_close(by_hand, production(ids), rtol=1e-3, atol=1e-3)
    one: Block = production.blocks[0]
    x = torch.randn(3, 11, 29)
    torch.testing.assert_close(block.by_hand(one, x), one(x), rtol=1e-3, atol=1e-3)


def test_normalisations_equal_torchs_in_training_and_outside_it() -> None:
    ours, theirs = normalization.BatchNorm(7, correction=0), torch.nn.BatchNorm1d(7)
    torch.nn.init.normal_(theirs.weight)
    torch.nn.init.normal_(theirs.bias)
    ours.gamma, ours.beta = theirs.weight.detach(), theirs.bias.detach()
    for _ in range(5):
        x = 3 * torch.randn(13, 7) + 2
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
    ours.training = False
    theirs.eval()
    x = torch.randn(1, 7)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    layer = torch.nn.LayerNorm(7)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    x = 3 * torch.randn(2, 5, 7) + 2
    torch.testing.assert_close(normalization.take_apart(layer)(x), layer(x), rtol=1e-4, atol=1e-5)


@given(st.permutations(range(7)))
def test_without_positions_and_mask_permuted_in_is_permuted_out(order: list[int]) -> None:
    one = Head(5, 3, causal=False)
    x = torch.randn(2, 7, 5)
    torch.testing.assert_close(one(x[:, order])[0], one(x)[0][:, order], rtol=1e-4, atol=1e-5)


def test_gelu_is_torchs() -> None:
    x = torch.linspace(-7, 7, 101)
    torch.testing.assert_close(
        block.gelu(x), torch.nn.functional.gelu(x, approximate="tanh"), rtol=1e-4, atol=1e-6
    )


def test_shuffling_the_past_keeps_the_last() -> None:
    x = torch.arange(11).view(1, 11)
    shuffled = positions.shuffle_past(x, seed=2)
    assert shuffled[0, -1] == 10
    assert sorted(shuffled[0].tolist()) == list(range(11))
    assert shuffled[0].tolist() != list(range(11))


def test_entropy_worked_out_by_hand() -> None:
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0, 0, 0], [0.5, 0.25, 0.25, 0]])
    assert scaling.entropy(weights).tolist() == pytest.approx([2.0, 0.0, 1.5])


# --- the pages ---


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained with dropout, on a text of its own."""
    folder = tmp_path_factory.mktemp("trained")
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 53)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        model = {"qkv_bias": True, "positions": "learned", "attention_scale": 1.5, "dropout": 0.5}
        config = small(train__steps=40, **{f"model__{key}": v for key, v in model.items()})
        train(config, load_corpus(open_text(str(text))), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def trained(run: Path) -> Trained:
    data = read_checkpoint(run, "best")
    return trained_model("run", load_model(data, torch.device("cpu")), data.vocabulary, seed=3)


@pytest.mark.parametrize("seed", [0, 1, 708, SEED])  # 708 once shuffled into the same order
@pytest.mark.parametrize("name", LESSONS)
def test_every_check_of_a_lesson_holds(name: str, seed: int) -> None:
    page = build_page(name, seed)
    assert page.holds
    assert Path(__file__).parents[1].joinpath(page.file).is_file()
    checks = [part for part in page.parts if "check" in part]
    assert checks or name == "scaling"


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", LESSONS)
def test_a_page_fits_the_terminal_and_loses_nothing(
    name: str, width: int, trained: Trained
) -> None:
    """Tables of 93 columns wrapped in the middle of a number at 80."""
    page = build_page(name, SEED, trained)
    lines = render(page, width).splitlines()
    assert max(map(len, lines)) <= width
    words = render(page, 1000).split()
    assert set(render(page, width).split()) >= {word for word in words if set(word) != {"="}}


def test_a_wide_table_is_split_between_columns() -> None:
    page = Page("a", "b", "c", None)
    page.table("caption", torch.arange(10.0).view(2, 5), ["x", "y"], ["p", "q", "r", "s", "t"])
    assert render(page, 27).split("\n\n", 1)[1].split("\n\nsource")[0].splitlines() == [
        "caption",
        "          p       q       r",
        "x    0.0000  1.0000  2.0000",
        "y    5.0000  6.0000  7.0000",
        "",
        "          s       t",
        "x    3.0000  4.0000",
        "y    8.0000  9.0000",
    ]


@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_shows_the_same_in_a_trained_model(name: str, trained: Trained) -> None:
    page, without = build_page(name, SEED, trained), build_page(name, SEED)
    assert page.holds
    assert page.parts[: len(without.parts)] == without.parts
    assert any("table" in part for part in page.parts[len(without.parts) :])


def test_the_recorded_activations_are_those_of_the_model(trained: Trained) -> None:
    logits = trained.model(trained.ids)
    last = trained.model.blocks[-1](trained.streams[-1])
    torch.testing.assert_close(trained.model.head(trained.model.norm(last)), logits)
    for (attention, q, k, v), x in zip(trained.heads(), trained.inputs, strict=True):
        out, _ = attend(q, k, v, causal=True)
        torch.testing.assert_close(attention.join(out), attention(x), rtol=1e-4, atol=1e-5)
    assert trained.vocabulary.decode(trained.ids[0].tolist()) == trained.text


def test_the_tables_of_a_trained_model_hold_what_their_captions_name(trained: Trained) -> None:
    def table(lesson: str, words: str) -> Tensor:
        parts = build_page(lesson, SEED, trained).parts
        return torch.tensor(next(p["values"] for p in parts if words in p.get("table", "")))

    _, q, k, _ = next(trained.heads())
    raw, past = (q @ k.transpose(-2, -1))[0], torch.ones(13, 13).tril() == 1
    expected = torch.stack([scores[past].var(correction=0) for scores in raw])
    torch.testing.assert_close(table("scaling", "variance of the scores, without")[0], expected)
    torch.testing.assert_close(table("scaling", "variance of the scores, with t")[0], expected / 10)
    in_order = trained.model(trained.ids)[0, -1].softmax(-1).sort(descending=True).values[:6]
    torch.testing.assert_close(table("positions", "predicted probability of the next")[0], in_order)
    first, x = trained.blocks[0], trained.streams[0]
    gathered = first.attention(first.attention_norm(x))
    lengths = [x.norm(dim=-1).mean(), gathered.norm(dim=-1).mean()]
    torch.testing.assert_close(table("block", "mean norm")[0, :2], torch.stack(lengths))
    plain, residual, normal = table("block", "standard deviation of the residual stream")[
        :, -1
    ].tolist()
    assert plain < 0.1 < normal < residual


def test_a_check_that_fails_is_shown_as_failed() -> None:
    page = build_page("averaging", SEED)
    page.check("one = two", torch.tensor(1.0), torch.tensor(2.0))
    assert not page.holds
    page.check_differ("one differs from one", torch.tensor(1.0), torch.tensor(1.0))
    assert "one = two (NOT equal: max |difference| 1)" in render(page, 80)
    assert "one differs from one (do NOT differ: only by 0)" in render(page, 80)


def test_a_check_says_how_close() -> None:
    page = Page("a", "b", "c", None)
    page.check("x = y", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 3e-5]))
    page.check("x = x", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
    page.check_differ("x differs from z", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.2]))
    assert page.holds
    assert "\n".join(render(page, 80).split("\n\n")[1:-1]).splitlines() == [
        "x = y (equal: max |difference| 3e-5)",
        "x = x (equal: max |difference| 0)",
        "x differs from z (differ by 2.2)",
    ]


def test_a_table_leaves_the_future_blank_and_has_no_minus_zero() -> None:
    page = Page("a", "b", "c", None)
    values = torch.tensor([[-1e-9, 3.0], [float("-inf"), -0.5]])
    page.table("caption", values, mask=torch.ones(2, 2).triu(1) == 1)
    assert render(page, 80).split("\n\n")[1].splitlines() == [
        "caption",
        "    0.0000",
        "      -inf -0.5000",
    ]
    assert json.loads(json.dumps(page.to_dict(), allow_nan=False)) == page.to_dict()


def test_a_step_is_shown_from_its_source_without_its_docstring() -> None:
    page = Page("a", "b", "c", None)
    page.source(averaging.by_matmul)
    code = render(page, 100).split("\n\n")[1]
    scope: dict[str, object] = {"torch": torch, "Tensor": Tensor}
    exec(textwrap.dedent(code), scope)
    x = averaging.example(SEED)
    assert torch.equal(scope["by_matmul"](x), averaging.by_matmul(x))  # type: ignore[operator]
    assert '"""' not in code
    assert max(map(len, render(page, 60).splitlines())) <= 60


def test_terms_are_bold_and_cells_shaded_only_where_the_terminal_has_colours() -> None:
    page = Page("a", "b", "c", None)
    page.paragraph("A **causal mask** hides the future; a causal mask is *not* everything.")
    page.verbatim("def f(**kwargs, **more)  # \x1b[31m")
    page.formula("attention", "softmax(Q K^T / sqrt(d_k)) V")
    page.table("caption", torch.tensor([[0.0, 1.0], [-1.0, 0.5]]))
    page.exercise("change it", "**42**")
    coloured, plain = (render(page, 80, colour=colour) for colour in (True, False))
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == plain
    assert "\x1b" not in plain
    assert coloured.count("\x1b[1mcausal mask\x1b[22m") == 1
    assert "def f(**kwargs, **more)  # \\x1b[31m" in coloured
    backgrounds = re.findall(r"\x1b\[48;5;(\d+)", coloured)
    assert len(set(backgrounds)) == len(backgrounds) == 4


def test_the_answer_of_an_exercise_is_shown_when_asked_for() -> None:
    page = Page("a", "b", "c", None)
    page.exercise("What is 6 x 7?", "It is 42.")
    assert "What is 6 x 7?" in render(page, 80)
    assert "42" not in render(page, 80)
    assert "Answer: It is 42." in render(page, 80, answer=True)


def test_each_lesson_names_the_next() -> None:
    pages = [build_page(name, SEED) for name in LESSONS]
    assert [page.next for page in pages] == [*list(LESSONS)[1:], None]


# --- the command ---


def test_explain_lists_the_lessons(gpt: Gpt) -> None:
    code, out, _ = gpt("explain")
    assert code == 0
    assert re.findall(r"^  (\w+)", out, re.MULTILINE) == list(LESSONS)
    assert json.loads(gpt("explain", "--json")[1]) == LESSONS


@pytest.mark.parametrize(("columns", "width"), [(50, 50), (80, 80), (120, 100)])
def test_explain_uses_the_terminals_width(
    gpt: Gpt, monkeypatch: pytest.MonkeyPatch, columns: int, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in (["explain"], ["explain", "model"]):
        lines = gpt(*arguments)[1].splitlines()
        assert max(map(len, lines)) <= width
    assert max(map(len, lines)) > 0.9 * width


def test_explain_shows_a_lesson(gpt: Gpt) -> None:
    code, out, _ = gpt("explain", "averaging")
    assert (code, "0.3525  0.0545" in out, "next: gpt explain head" in out) == (0, True, True)


@pytest.mark.parametrize("name", LESSONS)
def test_explain_shows_a_trained_run_without_its_dropout(gpt: Gpt, run: Path, name: str) -> None:
    """`heads`, `block` and `model` failed their own checks: the model was in training mode."""
    code, out, _ = gpt("explain", name, "--json", "--seed", 5, "--run", run)
    page, without = json.loads(out), build_page(name, 5)
    assert (code, page["lesson"], page["holds"]) == (0, name, True)
    assert len(page["parts"]) > len(without.parts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["head5"], "head5: no such lesson; there are averaging, head, scaling"),
        (["head", "--run", "nowhere"], "nowhere: expected the folder of a run"),
        (["head", "--seed", "-1"], "--seed"),
        (["head", "--seed", str(2**64)], "--seed"),
        (["--run", "nowhere"], "--run: name a lesson too"),
        (["head", "--text", "fox"], "--text: name a trained run too, with --run"),
    ],
)
def test_bad_input_of_explain(gpt: Gpt, arguments: list[str], message: str) -> None:
    code, out, err = gpt("explain", *arguments)
    assert (code, out, message in err) == (2, "", True)


def test_a_lesson_on_the_learners_own_text(gpt: Gpt, run: Path) -> None:
    code, out, _ = gpt("explain", "head", "--run", run, "--text", "the lazy fox")
    assert (code, "on 12 characters of yours: 'the lazy fox'." in out) == (0, True)
    for text, message in [
        ("", "--text: expected 1 to 13 characters, got 0"),
        ("the lazy, lazy fox", "--text: expected 1 to 13 characters, got 18"),
        ("fox!", "the text has characters outside the model's vocabulary: !"),
    ]:
        code, out, err = gpt("explain", "head", "--run", run, "--text", text)
        assert (code, out, message in err) == (2, "", True)


@pytest.mark.parametrize("name", LESSONS)
def test_a_text_of_one_character_will_do(run: Path, name: str) -> None:
    data = read_checkpoint(run, "best")
    model = load_model(data, torch.device("cpu"))
    page = build_page(name, SEED, trained_model("run", model, data.vocabulary, 3, "x"))
    assert page.holds
    assert "nan" not in render(page, 100)


def test_a_model_of_any_length_is_shown_on_256_characters_at_most(trained: Trained) -> None:
    """A stranger's run with a large T filled the memory with (T, T) tables."""
    model = GPT(ModelConfig(T=999, C=8, n_layer=1, n_head=1), len(trained.vocabulary)).eval()
    assert len(trained_model("run", model, trained.vocabulary, seed=3).text) == 256


def test_a_copied_checkpoint_can_be_explained_and_attended_to(gpt: Gpt, run: Path) -> None:
    """Its folder alone holds all that is needed; it was refused as no run."""
    shutil.copytree(run / "checkpoints" / "step-40", "copied")
    assert gpt("explain", "heads", "--run", "copied")[0] == 0
    assert gpt("attend", "copied", "--text", "the fox", "--out", "a.html")[0] == 0
    assert '"title":"copied, step 40","text":"the fox"' in Path("a.html").read_text("utf-8")
