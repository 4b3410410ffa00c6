"""Attention as a page to explore: one file that needs no network and runs no script but its own.

The text may hold anything, markup too. It enters the page as JSON that no parser of HTML can
mistake for a tag, is only ever set as text, and the page's policy (CSP) allows the one style and
the one script whose hashes it names.
"""

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

import torch

from gpt.evaluation.attention import Attention
from gpt.text.batches import to_torch
from gpt.text.display import symbol
from gpt.text.vocabulary import Vocabulary

TOP_CHARACTERS = 8
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}  # JSON reads them back


def html(attention: Attention, text: str, title: str, vocabulary: Vocabulary) -> bytes:
    """The page as the content of an HTML file; page.html, page.css and page.js put together."""
    parts = {
        name: (files(__package__) / f"page.{name}").read_text("utf-8") for name in ("css", "js")
    }
    page = (files(__package__) / "page.html").read_text("utf-8")
    for name, part in parts.items():
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        page = page.replace(f"{{{name}-hash}}", f"sha256-{digest}").replace(f"{{{name}}}", part)
    data = json.dumps(page_data(attention, text, title, vocabulary), separators=(",", ":"))
    return page.replace("{data}", data.translate(ESCAPES)).encode()


def page_data(
    attention: Attention, text: str, title: str, vocabulary: Vocabulary
) -> dict[str, Any]:
    """What the page shows.

    weights: of each layer and head, row t's first t + 1 weights, t = 0..T-1, as little-endian
    uint16 (65535 is 1) in base64. next: at each position the likeliest next characters, with their
    predicted probabilities. actual: at each but the last, the probability and the rank (from 1)
    of the actual next character.
    """
    n_layer, H, T, _ = attention.weights.shape
    past = torch.tril_indices(T, T)
    weights = attention.weights[:, :, past[0], past[1]]  # (n_layer, H, T (T + 1) / 2)
    p = attention.probabilities  # (T, V)
    likeliest = p.topk(min(TOP_CHARACTERS, p.shape[1]))
    targets = to_torch(vocabulary.encode(text)[1:])[:, None]  # (T-1, 1)
    actual = p[:-1].gather(1, targets)  # (T-1, 1)
    ranks = (p[:-1] > actual).sum(1) + 1
    signs = {c: symbol(c) for c in vocabulary.characters}
    return {
        "title": title,
        "text": text,
        "signs": {c: sign for c, sign in signs.items() if sign != c},
        "layers": n_layer,
        "heads": H,
        "weights": base64.b64encode(
            weights.mul(65535).round().numpy().astype("<u2").tobytes()
        ).decode(),
        "next": [
            [[vocabulary.characters[i], round(q, 5)] for i, q in zip(ids, qs, strict=True)]
            for ids, qs in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        ],
        "actual": [
            [round(q, 5), rank]
            for q, rank in zip(actual[:, 0].tolist(), ranks.tolist(), strict=True)
        ],
    }
