"""The n-gram counts of an exported page.

If the checkpoint contains the whole train split, the page gets its ids and counts the n-grams
again: the ids take a twentieth of the space. Otherwise, the page gets the counts.
"""

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.counts.experts import Experts
from gpt.counts.mixture import Mixture
from gpt.counts.ngram_counts import NgramCounts, count_ngrams
from gpt.counts.ngram_tree import levels_of


def page_counts(mixture: Mixture) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what a page needs to mix predictions by counts with those of the network.

    Returns:
        JSON values, and arrays by name: those of the gate, `text` (the train split or its end), and
        the levels of the tree of n-grams (`ids.1`, `counts.1`, `children.1`, ...) if they cannot
        be counted in `text`.
    """
    sampling = mixture.for_sampling()
    experts = sampling.experts
    values = {
        "T": sampling.T,  # ids of a window, beyond which nothing is counted
        "N": experts.counts.order,  # ids of the longest context of n-grams
        "orders": experts.orders,
        "names": experts.names,
    }
    return values, asdict(sampling.gate) | _text_or_counts(mixture.experts)


def _text_or_counts(experts: Experts) -> dict[str, NDArray[Any]]:
    """Return the arrays that the n-gram counts of `experts` can be restored from, by name."""
    counts, arrays = experts.counts, dict[str, NDArray[Any]]()
    if experts.long_contexts is not None:
        arrays["text"] = experts.long_contexts.reversed_ids[::-1]
        if _same(count_ngrams(arrays["text"], counts.V, counts.order), counts):
            return arrays
    for length, level in enumerate(levels_of(counts), 1):
        for name, array in level._asdict().items():
            arrays[f"{name}.{length}"] = array.astype(np.min_scalar_type(array.max(initial=0)))
    return arrays


def _same(counts: NgramCounts, others: NgramCounts) -> bool:
    """Return whether two tables of n-grams are equal."""
    return all(map(np.array_equal, counts.keys, others.keys)) and all(
        map(np.array_equal, counts.counts, others.counts)
    )
