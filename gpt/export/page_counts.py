"""The n-gram counts of an exported page: the text from which the page counts them again.

The ids of the train split take a twentieth of the space of its n-grams and their counts.
"""

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.counts.long_contexts import compared_ids
from gpt.counts.mixture import Mixture
from gpt.counts.ngram_counts import NgramCounts, count_ngrams


def page_counts(mixture: Mixture) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Return what a page needs for the n-gram counts of the train split.

    Returns:
        JSON values, and the arrays that are stored in binary; None if the train split cannot be
        restored from the checkpoint, because it has too many distinct ids or is too long.
    """
    sampling = mixture.for_sampling()
    experts, places = sampling.experts, sampling.experts.long_contexts
    counts = experts.counts
    if places is None:
        return None
    text = places.reversed_ids[::-1]
    if not _same(count_ngrams(text, counts.V, counts.order), counts):
        return None
    values = {
        "T": sampling.T,  # ids of a window, beyond which nothing is counted
        "N": counts.order,  # ids of the longest context of n-grams
        "orders": experts.orders,
        "long_orders": experts.long_orders,
        "compared": compared_ids(counts.V, experts.long_orders),
        "names": experts.names,
    }
    return values, {"text": text, **asdict(sampling.gate)}


def _same(counts: NgramCounts, others: NgramCounts) -> bool:
    """Return whether two tables of n-grams are equal."""
    return all(map(np.array_equal, counts.keys, others.keys)) and all(
        map(np.array_equal, counts.counts, others.counts)
    )
