"""The predictors that models are compared with: n-gram counts, against slow oracles."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.evaluation import baselines
from gpt.evaluation.baselines import KneserNey, count_ngrams, ngram_loss
from gpt.text.vocabulary import Ids, Vocabulary

V = 5
TEXTS = st.lists(st.integers(0, V - 1), max_size=41)


def array(ids: list[int]) -> Ids:
    return np.array(ids, np.uint8)


def slow_counts(ids: list[int], order: int) -> list[Counter[tuple[int, ...]]]:
    """Occurrences of the longest n-grams; of shorter ones, how many ids precede them."""
    counts = [Counter(tuple(ids[i : i + order + 1]) for i in range(len(ids) - order))]
    for _ in range(order):
        counts.insert(0, Counter(ngram[1:] for ngram in counts[0]))
    return counts


@given(TEXTS, st.integers(1, 3), st.sampled_from([7, 10**6]))
def test_ngrams_are_counted_wherever_a_part_ends(ids, order, part):
    spread = baselines.spread_slices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "spread_slices", lambda n, most: spread(n, most, part))
        found = count_ngrams(array(ids), V, order)
    for n, (expected, (keys, counts)) in enumerate(
        zip(slow_counts(ids, order), found, strict=True)
    ):
        ngrams = {
            sum(id_ * V ** (n - i) for i, id_ in enumerate(g)): k for g, k in expected.items()
        }
        assert dict(zip(keys.tolist(), counts.tolist(), strict=True)) == ngrams
        assert keys.tolist() == sorted(ngrams)


def slow_discounts(counts: list[int]) -> list[float]:
    """Chen and Goodman's estimates (equation 17), or defaults if one cannot be estimated."""
    n = [counts.count(times) for times in range(5)]
    if 0 in n[1:]:
        return [0.5, 1.0, 1.5]
    y = n[1] / (n[1] + 2 * n[2])
    found = [times - (times + 1) * y * n[times + 1] / n[times] for times in (1, 2, 3)]
    return [min(max(0.1, d), times - 0.1 * (times > 1)) for times, d in enumerate(found, 1)]


def slow_kneser_ney(ids: list[int], context: list[int]) -> list[float]:
    """Interpolated Kneser-Ney by the formula."""
    p = [1 / V] * V
    for n, level in enumerate(slow_counts(ids, len(context))):
        before = tuple(context[len(context) - n :])
        found = {ngram[-1]: count for ngram, count in level.items() if ngram[:-1] == before}
        if not found:
            continue
        total = sum(found.values())
        of_times = slow_discounts(list(level.values()))
        discounts = {id_: of_times[min(count, 3) - 1] for id_, count in found.items()}
        freed = sum(discounts.values()) / total
        p = [
            freed * p[id_] + (found.get(id_, 0) - discounts.get(id_, 0)) / total for id_ in range(V)
        ]
    return p


@given(TEXTS, st.lists(st.integers(0, V - 1), max_size=23), st.integers(0, 3))
def test_kneser_ney_is_the_formula(ids, text, order):
    found = KneserNey(array(ids), V, order).probabilities(array(text))
    expected = [slow_kneser_ney(ids, text[i - order : i])[text[i]] for i in range(order, len(text))]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("part", [100, 10**6])
def test_an_ngram_loss_is_the_mean(monkeypatch, part):
    monkeypatch.setattr(baselines, "PREDICTED_PART", part)
    vocabulary = Vocabulary("abcdefghijk")
    train, text = (np.random.default_rng(i).integers(11, size=997).astype(np.uint8) for i in (1, 2))
    nats = -np.log(KneserNey(train, 11, 2).probabilities(text))
    assert ngram_loss(train, text, vocabulary, 2) == pytest.approx(nats.mean())
