"""Attention as a page to explore: one file that needs no network and runs no script but its own.

The text may hold anything, markup too. It enters the page as JSON that no parser of HTML can
mistake for a tag, is only ever set as text, and the page's policy (CSP) allows the one style and
the one script whose hashes it names.
"""

import base64
import json
import math
from typing import Any

import torch

from gpt.evaluation.head_analysis import AttentionAnalysis
from gpt.inspection.document import embedded
from gpt.text.batches import to_torch
from gpt.text.display import symbol
from gpt.text.vocabulary import Vocabulary

TOP_CHARACTERS = 8
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}  # JSON reads them back


def html(
    analysis: AttentionAnalysis,
    text: str,
    title: str,
    vocabulary: Vocabulary,
    chosen: tuple[int, int] = (0, 0),
) -> bytes:
    """The page as the content of an HTML file; page.html with its style and script.

    It opens with the chosen layer and head, counted from 0.
    """
    content = {"title": title, "chosen": chosen, **page_data(analysis, text, vocabulary)}
    data = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return embedded("attention_page").replace("{data}", data.translate(ESCAPES)).encode()


def page_data(analysis: AttentionAnalysis, text: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """What the page shows.

    heads: of all members of an ensemble, one after the other.
    text: the names of its T ids, each of which stands for one `unit`. weights: of each layer and
    head, row t's first t + 1 weights, t = 0..T-1, as little-endian uint16 (65535 is 1) in base64.
    next: at each position the likeliest next characters, with their predicted probabilities.
    actual: at each but the last, the probability and the rank (from 1) of the actual next
    character. lens: of the embeddings and after each layer, the likeliest next characters, their
    probabilities and the losses. norms, previous, induction, losses, without: see
    AttentionAnalysis; null for NaN.
    """
    n_layer, H, T, _ = analysis.weights.shape
    past = torch.tril_indices(T, T)
    weights = analysis.weights[:, :, past[0], past[1]]  # (n_layer, H, T (T + 1) / 2)
    p = analysis.probabilities  # (T, V)
    likeliest = p.topk(min(TOP_CHARACTERS, p.shape[1]))
    ids = vocabulary.encode(text)
    targets = to_torch(ids[1:])[:, None]  # (T-1, 1)
    actual = p[:-1].gather(1, targets)  # (T-1, 1)
    ranks = (p[:-1] > actual).sum(1) + 1
    signs = {name: symbol(name) for name in vocabulary.names}
    return {
        "text": vocabulary.names_of(ids),
        "unit": vocabulary.unit,
        "signs": {c: sign for c, sign in signs.items() if sign != c},
        "layers": n_layer,
        "heads": H,
        "members": analysis.members,
        "weights": base64.b64encode(
            weights.mul(65535).round().numpy().astype("<u2").tobytes()
        ).decode(),
        "next": [
            [[vocabulary.names[i], round(q, 5)] for i, q in zip(ids, qs, strict=True)]
            for ids, qs in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        ],
        "actual": [
            [round(q, 5), rank]
            for q, rank in zip(actual[:, 0].tolist(), ranks.tolist(), strict=True)
        ],
        "norms": _rounded(analysis.value_norms.tolist()),
        "previous": _rounded(analysis.previous.tolist()),
        "induction": _rounded(analysis.induction.tolist()),
        "losses": _rounded(analysis.losses.tolist()),
        "without": _rounded(analysis.losses_without.tolist()),
        "lens": [
            {
                "next": vocabulary.names_of(predicted),
                "probabilities": _rounded(probabilities),
                "losses": _rounded(losses),
            }
            for predicted, probabilities, losses in zip(
                analysis.lens.predicted.tolist(),
                analysis.lens.probabilities.tolist(),
                analysis.lens.losses.tolist(),
                strict=True,
            )
        ],
    }


def _rounded(numbers: Any) -> Any:
    """A number, or nested lists of them, to five decimals; JSON has no NaN."""
    if isinstance(numbers, list):
        return [_rounded(number) for number in numbers]
    return round(numbers, 5) if math.isfinite(numbers) else None
