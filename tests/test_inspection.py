"""Attention weights are those the model used; pictures show them; the page is safe."""

import json
import os
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from torch import Tensor

from gpt.errors import CheckpointError, UsageError
from gpt.evaluation.head_analysis import AttentionAnalysis, analyze_text
from gpt.files import check_out
from gpt.inspection.attention_views import attention_page, draw_head
from gpt.inspection.pictures import draw_heads, png
from gpt.model.attention import CausalSelfAttention
from gpt.model.attention_maps import attend, attend_text
from gpt.terminal import symbol, visible
from gpt.text.vocabulary import Vocabulary
from tests.test_analysis import ALPHABET, H, L, T, V, model

HOSTILE = "<script>alert(1)</script>\"'&\u2028\u2029\n\t\x00\x1b{data}</body>\u202eאé"


def analysis_of(text: str, n_layer: int = L, H: int = H) -> tuple[AttentionAnalysis, Vocabulary]:
    """An analysis of the right shapes of any text, drawn at random."""
    vocabulary, n = Vocabulary.of(text), len(text)
    draws = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(n_layer, H, n, n, generator=draws)
    weights = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf")).softmax(-1)
    losses = torch.rand(n - 1, generator=draws)
    analysis = AttentionAnalysis(
        weights,
        torch.randn(n, len(vocabulary), generator=draws).softmax(-1),
        previous=torch.rand(n_layer, H, generator=draws),
        induction=torch.rand(n_layer, H, generator=draws),
        losses=losses,
        losses_without=losses + torch.randn(n_layer, H, n - 1, generator=draws) / 10,
    )
    return analysis, vocabulary


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("n", [1, 7, T])
@torch.no_grad()
def test_the_weights_are_those_that_the_fast_path_used(positions, n):
    """Weights computed on another input, or in another way, would not give the blocks' output."""
    gpt = model(positions=positions)
    ids = torch.arange(n) * 5 % V
    seen: list[tuple[CausalSelfAttention, Tensor, Tensor]] = []
    for part in gpt.modules():
        if isinstance(part, CausalSelfAttention):
            part.register_forward_hook(lambda part, x, y: seen.append((part, x[0], y)))
    logits = gpt(ids[None])
    used = list(seen)  # before attend adds to it
    attention = attend(gpt, ids)

    assert attention.weights.shape == (L, H, n, n)
    assert attention.probabilities.shape == (n, V)
    torch.testing.assert_close(attention.weights.sum(-1), torch.ones(L, H, n))
    assert (attention.weights.triu(1) == 0).all()
    assert len(used) == L
    for layer, (part, x, y) in enumerate(used):
        values = part.heads(x)[2]
        torch.testing.assert_close(part.join(attention.weights[layer][None] @ values), y)
    torch.testing.assert_close(attention.probabilities, logits[0].softmax(-1))


def test_weights_that_give_nan_are_refused():
    """A run with weights of 1e30 made a page with NaN in it, and exit code 0."""
    gpt = model()
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter.mul_(1e30)
    with pytest.raises(CheckpointError, match="logits are NaN or infinite; load another check"):
        attend_text(gpt, ALPHABET, "abc")


def rows_of(shown: str) -> list[str]:
    """The lines of the map, the characters' labels below it left out."""
    return shown.split("\n\n")[1].splitlines()[:-1]


def test_a_head_in_blocks_is_darker_where_its_weight_is_larger():
    analysis, _ = analysis_of("to be or")
    analysis.weights[0, 0, 7] = torch.tensor([0.01, 0.1, 0.3, 0.59, 0, 0, 0, 0])
    analysis.weights[0, 0, 0, 0] = 1
    rows = rows_of(draw_head(analysis, "to be or", "t"))
    assert rows[0] == "t ██"
    assert rows[7] == "r ··░░▒▒▓▓········"


@pytest.mark.parametrize("text", ["เพื่อนที่", "नमस्ते", "a\u200db"])
def test_marks_that_take_no_column_shift_none(text):
    """Bug: Thai vowels and joiners counted as a column, and the cells and labels shifted."""
    analysis, _ = analysis_of(text)
    *rows, keys = draw_head(analysis, text, "t").split("\n\n")[1].splitlines()
    marks = {"Mn", "Me", "Cf"}
    widths = [sum(unicodedata.category(c) not in marks for c in row) for row in (*rows, keys)]
    margin = max(sum(unicodedata.category(c) not in marks for c in symbol(c)) for c in text) + 1
    ends = [margin + 2 * (t + 1) for t in range(len(text))]
    assert widths == [*ends, ends[-1] - 1]


@settings(max_examples=40)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60),
    width=st.sampled_from([40, 80, 100]),
)
def test_a_head_fits_the_terminal_and_sends_it_nothing_to_obey(text, width):
    analysis, _ = analysis_of(text)
    shown = draw_head(analysis, text, "a run\x1b[2J", width=width)
    assert shown == visible(shown)
    for line in shown.splitlines():
        assert cell_len(line) <= width
    rows = rows_of(shown)
    assert (f"The first {len(rows)} of {len(text)} characters" in " ".join(shown.split())) == (
        len(rows) < len(text)
    )


@pytest.mark.parametrize("text", ["to be or", "日本語の文章$a$", HOSTILE, "x"])
def test_a_picture_is_a_labelled_grid_of_the_weights(text):
    """Warnings are errors here: matplotlib warns of characters that its font lacks."""
    analysis, _ = analysis_of(text)
    figure = draw_heads(analysis, text, "走る $x$")
    maps = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert len(maps) == L * H
    for i, axes in enumerate(maps):
        layer, head = divmod(i, H)
        shown = axes.images[0].get_array()
        assert np.array_equal(np.ma.getdata(shown), analysis.weights[layer, head])
        assert np.array_equal(shown.mask, np.triu(np.ones((len(text),) * 2), 1) > 0)
        assert axes.images[0].get_clim() == (0, 1)
        assert axes.get_title() == (f"head {head + 1}" if layer == 0 else "")
        assert axes.get_ylabel() == (f"layer {layer + 1}" if head == 0 else "")
        for ticks, outer in (
            (axes.get_yticklabels(), head == 0),
            (axes.get_xticklabels(), layer == L - 1),
        ):
            labels = "".join(tick.get_text() for tick in ticks)
            signs = [(symbol(c), c.encode("unicode_escape").decode()) for c in text]
            spelled = "".join(f"(?:{re.escape(a)}|{re.escape(b)})" for a, b in signs)
            assert re.fullmatch(spelled, labels) if outer else not ticks
    assert png(figure).startswith(b"\x89PNG\r\n")


def data_of(page: str) -> dict[str, Any]:
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data
    found: dict[str, Any] = json.loads(data[1])
    return found


def test_a_page_of_one_character_has_no_scores():
    """JSON has no NaN: the page would be blank."""
    analysis = analyze_text(model(), ALPHABET, "a")
    data = data_of(attention_page(analysis, "a", "t", ALPHABET).decode())
    assert data["previous"] == [[None] * H] * L
    assert (data["losses"], data["without"]) == ([], [[[]] * H] * L)


def test_a_hostile_text_stays_data():
    analysis, vocabulary = analysis_of(HOSTILE)
    page = attention_page(analysis, HOSTILE, "<script>", vocabulary).decode()
    assert data_of(page)["text"] == list(HOSTILE)
    assert len(re.findall("<script", page, re.IGNORECASE)) == 2  # the data and our own
    assert "alert(1)</" not in page
    assert page.count("</body>") == page.count("</html>") == 1
    assert not set(page) & set("\u2028\u2029\u202e\x00\x1b")


def test_a_name_is_checked():
    """A link or a pipe was replaced by the picture, without a word."""
    endings = [".png", ".html"]
    check_out(Path("a.png"), "--out", endings)
    check_out(Path("a.html"), "--out", endings)
    Path("link.png").symlink_to("a.png")
    os.mkfifo("pipe.png")
    Path("folder.png").mkdir()
    for name in ("a.pdf", "a", ".png", "nowhere/a.png", "link.png", "pipe.png", "folder.png"):
        with pytest.raises(UsageError, match=f"out {name}: "):
            check_out(Path(name), "--out", endings)
