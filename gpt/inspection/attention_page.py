"""Show attention on an interactive page: one HTML file that needs no network.

For safety, the page contains the text as JSON, and its script never inserts the text as markup.
"""

import base64
import math
from typing import Any

import torch

from gpt.evaluation.head_analysis import AttentionAnalysis, LogitLens
from gpt.inspection.html_page import render_page
from gpt.text.batches import to_torch
from gpt.text.display import symbol
from gpt.text.vocabulary import Vocabulary

TOP_CHARACTERS = 8  # number of the most likely next characters shown at each position


def attention_page(
    analysis: AttentionAnalysis,
    text: str,
    title: str,
    vocabulary: Vocabulary,
    chosen: tuple[int, int] = (0, 0),
) -> bytes:
    """Return an HTML file that shows `analysis`.

    Args:
        analysis: the attention of the model to `text`.
        text: a text of at least one character.
        title: the name of the model.
        vocabulary: the vocabulary of the model.
        chosen: the layer and the head that are shown first, counted from 0.
    """
    data = {"title": title, "chosen": chosen, **_page_data(analysis, text, vocabulary)}
    return render_page("attention", data=data)


def _page_data(analysis: AttentionAnalysis, text: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the values that the script of the page uses, by name.

    "weights" is base64 of little-endian uint16, where 65535 means 1: for each layer, head and query
    position t, the weights on key positions 0 to t. "next" has pairs of a likely next character and
    its probability for each position. "actual" has the predicted probability and rank (from 1) of
    each character after the first.
    """
    n_layer, H, T, _ = analysis.weights.shape
    past = torch.tril_indices(T, T)
    weights = analysis.weights[:, :, past[0], past[1]]  # (n_layer, H, T (T + 1) / 2)
    ids = vocabulary.encode(text)
    p = analysis.probabilities  # (T, V)
    top = p.topk(min(TOP_CHARACTERS, p.shape[1]))
    actual = p[:-1].gather(1, to_torch(ids[1:])[:, None])  # (T - 1, 1)
    ranks = (p[:-1] > actual).sum(1) + 1
    signs = {name: symbol(name) for name in vocabulary.names}
    counts = analysis.with_counts
    tensors = {
        "norms": analysis.value_norms,
        "previous": analysis.previous,
        "induction": analysis.induction,
        "losses": analysis.losses,
        "without": analysis.losses_without,
    }
    return {
        "text": vocabulary.names_of(ids),
        "unit": vocabulary.unit,
        "signs": {c: sign for c, sign in signs.items() if sign != c},
        "layers": n_layer,
        "heads": H,
        "weights": base64.b64encode(
            weights.mul(65535).round().numpy().astype("<u2").tobytes()
        ).decode(),
        "next": [
            [*zip(vocabulary.names_of(likely), _rounded(values), strict=True)]
            for likely, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ],
        "actual": [*zip(_rounded(actual[:, 0].tolist()), ranks.tolist(), strict=True)],
        **{name: _rounded(tensor.tolist()) for name, tensor in tensors.items()},
        "lens": _lens_rows(analysis.lens, vocabulary),
        "counts": counts
        and {
            "lens": _lens_rows(counts.lens, vocabulary),
            "weights": _rounded(counts.weights.tolist()),
            "names": counts.names,
        },
    }


def _lens_rows(lens: LogitLens, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Return a dict for each row of `lens`: names of predicted ids, probabilities and losses."""
    rows = (each.tolist() for each in (lens.predicted, lens.probabilities, lens.losses))
    return [
        {
            "next": vocabulary.names_of(predicted),
            "probabilities": _rounded(probabilities),
            "losses": _rounded(losses),
        }
        for predicted, probabilities, losses in zip(*rows, strict=True)
    ]


def _rounded(numbers: Any) -> Any:
    """Round a number, or nested lists of numbers, to five decimals; NaN becomes None."""
    if isinstance(numbers, list):
        return [_rounded(number) for number in numbers]
    return round(numbers, 5) if math.isfinite(numbers) else None
