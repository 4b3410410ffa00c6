"""The effect of each attention head: each number is compared with a slower, obvious way to it."""

import copy
import math

import pytest
import torch
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.evaluation.head_analysis import (
    analyze_text,
    losses_without_heads,
    prefix_matching_score,
    previous_character_score,
)
from gpt.model.attention_maps import blocks_of
from gpt.model.transformer import GPT
from gpt.text.vocabulary import Vocabulary

L, H, T, C, V = 2, 3, 11, 20, 17  # layers, heads, ...: no two alike
IDS = torch.arange(7) * 5 % V
ALPHABET = Vocabulary("abcdefghijklmnopq")  # V characters


def model(**changes: object) -> GPT:
    """A model with random weights, in evaluation mode, in which dropout must have no effect."""
    sizes = {"T": T, "C": C, "n_layer": L, "n_head": H, "head_size": 6, "value_size": 7}
    config = ModelConfig.model_validate(sizes | {"dropout": 0.5} | changes)
    made, draws = GPT(config, V), torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=draws)
    return made.eval()


@torch.no_grad()
def nats(gpt: GPT, ids: Tensor) -> list[float]:
    """The loss of each character but the first, computed one at a time."""
    p = gpt(ids[None])[0].double().softmax(-1)
    return [-math.log(p[t, int(ids[t + 1])]) for t in range(len(ids) - 1)]


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_loss_without_a_head_is_that_of_a_model_whose_projection_ignores_it(positions):
    gpt = model(positions=positions)
    before, losses = gpt(IDS[None]), losses_without_heads(gpt, IDS)
    assert gpt(IDS[None]).equal(before)
    assert losses.shape == (L, H, 6)
    for layer in range(L):
        for head in range(H):
            without = copy.deepcopy(gpt)
            columns = slice(7 * head, 7 * (head + 1))
            blocks_of(without)[layer].attention.projection.weight.data[:, columns] = 0
            expected = nats(without, IDS)
            assert losses[layer, head].tolist() == pytest.approx(expected, rel=1e-5)
            assert expected != pytest.approx(nats(gpt, IDS), rel=1e-3)


def test_the_analysis_of_a_text_has_the_models_own_losses_and_the_cost_of_each_head():
    gpt = model()
    blocks_of(gpt)[1].attention.projection.weight.data[:, 7:14] = 0  # one head adds nothing
    found = analyze_text(gpt, ALPHABET, "abcadeb")
    costs = found.removal_costs
    assert costs.shape == (L, H)
    assert costs[1, 1].item() == pytest.approx(0, abs=1e-6)
    assert (costs.abs() > 1e-3).sum() == L * H - 1
    ids = torch.tensor([ALPHABET.characters.index(c) for c in "abcadeb"])
    assert found.losses.tolist() == pytest.approx(nats(gpt, ids), rel=1e-5)


def test_the_previous_character_score_of_a_constructed_attention():
    weights = torch.zeros(2, 5, 5)
    weights[0] = torch.eye(5).roll(-1, dims=1)  # t attends to t - 1 only
    weights[1] = torch.eye(5)
    weights[1, 2] = torch.tensor([0.1, 0.6, 0.3, 0, 0])
    assert previous_character_score(weights).tolist() == pytest.approx([1, 0.6 / 4])
    assert previous_character_score(torch.ones(1, 1)).isnan()


def test_the_prefix_matching_score_of_a_constructed_attention():
    """In abcabc, the second a attends to the first b: the character that followed last time."""
    induction, copying = torch.zeros(6, 6), torch.zeros(6, 6)
    for t in (3, 4, 5):
        induction[t, t - 2] = 0.75
        copying[t, t - 3] = 0.75  # to the same character: another kind of head
    scores = prefix_matching_score(torch.stack([induction, copying]))
    assert scores.tolist() == pytest.approx([0.75, 0])
