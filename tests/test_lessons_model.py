"""The lessons from positions on: against torch's layers, counts and the production model."""

import math
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.lessons import block, counting, positions, recipe, small_models
from gpt.lessons.build import build_page
from gpt.lessons.trained import Trained, trained_model
from gpt.model.transformer import GPT
from gpt.text.corpus import load_corpus
from gpt.text.sources import open_source
from gpt.text.vocabulary import Vocabulary
from tests.test_model import shaken

Gpt = Callable[..., tuple[int, str, str]]
SEED = 1337
CHARACTERS = "".join(map(chr, range(97, 97 + 23)))


def untrained(**changes: object) -> Trained:
    """A model of 23 characters whose weights are all drawn, and a text of it."""
    sizes = {"T": 17, "C": 20, "n_layer": 3, "n_head": 2, "head_size": 6}
    gpt = shaken(GPT(ModelConfig.model_validate(sizes | changes), 23).eval())
    return trained_model("drawn", gpt, Vocabulary(CHARACTERS), seed=3)


def table(lesson: str, words: str, trained: Trained | None = None) -> Tensor:
    parts = build_page(lesson, SEED, trained).parts
    return torch.tensor(next(p["values"] for p in parts if words in p.get("table", "")))


# --- positions ---


@given(T=st.integers(3, 13), kept=st.integers(1, 5), seed=st.integers(0, 2**63 - 1))
def test_the_past_is_permuted_and_the_last_stay(T: int, kept: int, seed: int) -> None:
    """It was rolled, not permuted, and the characters of the last n-gram moved with it."""
    kept = min(kept, T - 2)
    order = positions.permute_past(T, kept, seed).tolist()
    assert sorted(order) == list(range(T))
    assert order[T - kept :] == list(range(T - kept, T))
    assert order != list(range(T))


def test_the_past_is_not_rolled() -> None:
    rolls = [[(i + by) % 8 for i in range(8)] for by in range(8)]
    orders = [positions.permute_past(9, 1, seed).tolist()[:8] for seed in range(20)]
    assert sum(order in rolls for order in orders) <= 1


def test_sinusoids_are_those_of_the_paper() -> None:
    table = positions.sinusoids(11, 6)
    for t in range(11):
        for i in range(3):
            angle = t / 10000 ** (2 * i / 6)
            assert table[t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("where", ["learned", "rotary"])
@pytest.mark.parametrize("ngram", [1, 4])
def test_a_permuted_past_changes_the_prediction(where: str, ngram: int) -> None:
    deep = untrained(positions=where, ngram=ngram)
    in_order, permuted = table("positions", "predicted probability", deep)
    expected = deep.model(deep.ids)[0, -1].softmax(-1).sort(descending=True).values[:6]
    torch.testing.assert_close(in_order, expected, rtol=1e-3, atol=1e-5)
    assert not permuted.allclose(in_order, rtol=1e-2)


# --- block and model ---


def test_a_block_equals_torchs_encoder_layer_with_a_causal_mask() -> None:
    ours = shaken(block.PreNormBlock(T=11, C=30, n_head=5))
    theirs = nn.TransformerEncoderLayer(
        *(30, 5, 120, 0.0), block.gelu, batch_first=True, norm_first=True
    )
    attention = ours.attention
    pairs = [
        (theirs.norm1, ours.attention_norm),
        (theirs.norm2, ours.mlp_norm),
        (theirs.linear1, ours.mlp.expand),
        (theirs.linear2, ours.mlp.projection),
        (theirs.self_attn.out_proj, attention.projection),
    ]
    for torchs, of_ours in pairs:
        torchs.load_state_dict(of_ours.state_dict())
    theirs.self_attn.in_proj_weight.data = attention.qkv.weight.data
    theirs.self_attn.in_proj_bias.data.zero_()
    x = torch.randn(3, 11, 30)
    mask = nn.Transformer.generate_square_subsequent_mask(11)
    expected = theirs(x, src_mask=mask, is_causal=True)
    torch.testing.assert_close(ours(x), expected, rtol=1e-3, atol=1e-3)


def test_the_model_lesson_tells_nothing_of_the_recipe() -> None:
    """It told rotary positions, QK norm, n-grams and squared ReLU as if they were "a GPT"."""
    page = str(build_page("model", SEED).parts)
    assert not re.search(r"rotary|RoPE|qk.norm|n-?gram|relu2|squared", page, re.IGNORECASE)


# --- recipe ---


@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_normalised_scores_have_a_bound(factor: float) -> None:
    q, k = factor * torch.randn(2, 3, 11, 7)
    scores = recipe.normalised_scores(q, k)
    assert 0.5 < scores.abs().max() <= 7**0.5
    for t in range(11):
        norm = nn.LayerNorm(7, elementwise_affine=False)
        expected = (norm(q[2, t]) @ norm(k[2, 5])) / 7**0.5
        torch.testing.assert_close(scores[2, t, 5], expected, rtol=1e-4, atol=1e-5)


def test_u_vt_has_equal_singular_values_and_the_same_directions() -> None:
    gradient = torch.randn(7, 5)
    result = recipe.by_svd(gradient)
    torch.testing.assert_close(torch.linalg.svdvals(result), torch.ones(5))
    stretched = gradient.T @ result  # V S U^T U V^T = V S V^T: symmetric and positive
    torch.testing.assert_close(stretched, stretched.T, rtol=1e-4, atol=1e-4)
    assert torch.linalg.eigvalsh(stretched).min() > 0


LEFT_OUT = {  # {0}: val loss, the mean of three seeds
    "rotary positions (learned)": "| rotary positions | `model.positions=learned` |...| {0} |",
    "QK norm and its scale 1.5": "| QK norm | ...`model.attention_scale=1` |...| {0} |",
    "n-gram embeddings": "| n-gram embeddings | `model.ngram=1` |...| {0} |",
    "squared ReLU (GELU)": "| squared ReLU | `model.activation=gelu` |...| {0} |",
    "initialisation (GPT-2's)": "| initialisation | weights as in GPT-2: ...| {0} |",
    "Muon (AdamW, its best rate)": "| Muon | `train.optimizer=adamw`, ...| {0} |",
    "short windows first": "| short windows first |...| {0} |",
    "all but the initialisation": "| all but the initialisation |...| {0} |",
}


def test_what_the_recipe_brings_is_in_the_record_of_experiments() -> None:
    """Any row that held both figures, in either order, would do; 1.863 was not compared."""
    record = Path(__file__).parents[1].joinpath("scripts", "experiments.md").read_text("utf-8")

    def recorded(row: str, *losses: float) -> bool:
        pattern = re.escape(row.format(*(f"{loss:.3f}" for loss in losses)))
        return bool(re.search("^" + pattern.replace(r"\.\.\.", ".*"), record, re.MULTILINE))

    assert recorded("| nothing |...| {0} |", recipe.LOSS_WITH_ALL)
    assert {part: recorded(LEFT_OUT[part], x) for part, x in recipe.LEAVE_ONE_OUT.items()} == (
        dict.fromkeys(LEFT_OUT, True)
    )


# --- training ---


def test_each_part_more_learns_more() -> None:
    page = build_page("training", SEED)
    values = next(p["values"] for p in page.parts if "nats per character" in p.get("table", ""))
    losses = torch.tensor(values)
    before, after = losses[:, 0].tolist(), losses[:, 1].tolist()
    corpus = load_corpus(open_source("python-docs"))
    assert before == pytest.approx([math.log(len(corpus.vocabulary))] * 5, abs=1e-5)
    bigram, average, one_head, four_heads, one_block = after
    assert before[0] > bigram + 1 > average + 0.9
    assert average > one_head + 0.1 > four_heads + 0.2 > one_block + 0.2
    assert losses[:, 2].tolist() == pytest.approx([math.exp(x) for x in after], rel=1e-4)
    assert f"To the bigram's, {bigram:.4f}" in page.parts[-1]["answer"]


def test_adam_is_torchs() -> None:
    ours, theirs = (nn.Parameter(torch.arange(7.0)) for _ in range(2))
    adam = small_models.Adam([ours])
    torchs = torch.optim.Adam([theirs], betas=(0.9, 0.99))
    for step in range(5):
        for parameter in (ours, theirs):
            parameter.grad = None
            (parameter.sin() * step).sum().backward()
        adam.step(0.1 / (step + 1))
        torchs.param_groups[0]["lr"] = 0.1 / (step + 1)
        torchs.step()
    torch.testing.assert_close(ours, theirs)


def test_an_inverted_mask_has_a_low_loss_and_writes_nonsense() -> None:
    parts = build_page("masks", SEED).parts
    losses = next(p["values"] for p in parts if "val split" in p.get("table", ""))
    assert losses[0][1] > 2 > 0.5 > losses[1][1]
    samples = next(p["lines"] for p in parts if p.get("drawing") == "samples")
    right, inverted = (set(line[10:]) for line in samples)
    assert len(right) > 10 > len(inverted)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=40))
def test_the_counted_bigram_has_the_frequencies(ids: list[int]) -> None:
    counts = np.full((5, 5), 0.01)
    for a, b in pairwise(ids):
        counts[a, b] += 1
    predicted = small_models.count_bigrams(np.array(ids, np.uint8), 5)(torch.arange(5)).softmax(-1)
    expected = torch.from_numpy(counts / counts.sum(1, keepdims=True)).float()
    torch.testing.assert_close(predicted, expected, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_loss_by_context_is_of_the_same_characters() -> None:
    trained = untrained(n_layer=1)
    ids = trained.ids[0]  # 17 of them: contexts of 1, 2, 4 and 8
    losses = small_models.loss_by_context(trained.model, ids, 17)
    assert [*losses] == [1, 2, 4, 8]
    for context, loss in losses.items():
        of_each = []
        for t in range(8, 17):
            logits = trained.model(ids[None, t - context : t])[0, -1]
            of_each.append(-logits.log_softmax(-1)[ids[t]].item())
        assert loss == pytest.approx(sum(of_each) / len(of_each), rel=1e-4)
    assert small_models.loss_by_context(trained.model, ids[:1], 17) == {}


# --- counting ---


def test_kneser_ney_worked_out_by_hand() -> None:
    """In "aab": after a, once each a and b; before a stands a alone, and before b a alone."""
    unigrams = (1 - 0.5) / 2 + 1 / 2 * 1 / 2
    assert counting.kneser_ney("aab", "a") == [(1 - 0.5) / 2 + 1 / 2 * unigrams] * 2


def test_a_longer_context_counts_better() -> None:
    losses = table("counting", "python-docs: loss")[0].tolist()
    assert len(losses) == 9
    assert all(longer < shorter for shorter, longer in pairwise(losses))
