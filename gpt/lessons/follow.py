"""Follow the last character of a text through a trained model, with the numbers of each step.

Shapes: T time, C channels, V vocabulary size, `hs` numbers in a query or key, `vs` in a value.
"""

import torch
from torch import Tensor

from gpt.evaluation.head_analysis import losses_without_heads
from gpt.lessons.head import SHOWN_KEYS, attend
from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained
from gpt.model.attention_maps import run_with_streams
from gpt.model.transformer import GPT
from gpt.text.display import in_one_line, symbol

SHOWN_NUMBERS = 6  # numbers of a vector that a table shows


def lens(model: GPT, x: Tensor) -> Tensor:
    """Apply the last LayerNorm and the output layer to x (1, T, C); return logits (1, T, V)."""
    return model.head(model.norm(x))


def explain_follow(page: Page, trained: Trained) -> None:
    """Write on `page` how the model predicts the character after the text."""
    model, ids = trained.model, trained.ids[0]
    logits, streams = run_with_streams(model, ids)
    T, last = len(ids), symbol(trained.characters[-1])
    shown = min(SHOWN_NUMBERS, model.config.C)
    page.verbatim(f"In the model {trained.name}, on a text {trained.origin}:")
    page.verbatim(in_one_line(trained.text))
    page.section("From a character to a vector")
    page.paragraph(f"""The last of its {T} {trained.vocabulary.unit}s is {last}. Its id is
        {int(ids[-1])} of {len(trained.vocabulary)}. The id selects a row of C = {model.config.C}
        numbers, the token embedding. {_added_rows(trained)} The sum begins the residual stream:""")
    page.table(
        f"the first {shown} of {model.config.C} numbers",
        {
            "token embedding": model.token_embedding.weight[ids[-1]][:shown],
            "residual stream": streams[0][0, -1, :shown],
        },
        columns=[f"c{i}" for i in range(shown)],
    )
    _explain_head(page, trained)
    page.section("Through the blocks")
    page.paragraph("""Each block adds what its attention and its MLP computed. What would the model
        predict if it ended there? The **logit lens** applies the last LayerNorm and the output
        layer to each residual stream:""")
    page.source(lens)
    likely, columns = trained.likeliest(logits[0, -1])
    page.table(
        f"length of the stream, and the probabilities of the next {trained.vocabulary.unit}",
        [[x[0, -1].norm(), *lens(model, x)[0, -1].softmax(-1)[likely]] for x in streams],
        ["embedding", *(f"block {i + 1}" for i in range(len(streams) - 1))],
        ["length", *columns],
    )
    claim = "the last row = the network's prediction"
    page.check(claim, lens(model, streams[-1])[0, -1], model(trained.ids)[0, -1])
    normal, raw = logits[0, -1].softmax(-1), model.head(streams[-1])[0, -1].softmax(-1)
    page.exercise(
        f"""In `lens` write model.head(x), without the LayerNorm. What becomes of the last row's
        probability of {columns[0]}, and which check fails?""",
        f"""It is {raw[likely[0]]:.4f} in place of {normal[likely[0]]:.4f}. LayerNorm gives every
        stream about the length sqrt(C) = {model.config.C**0.5:.4f}. Without it, logits are as
        large as the stream is long, and the lens of a short stream is undecided. "The last row =
        the network's prediction" fails.""",
    )


def _added_rows(trained: Trained) -> str:
    """Return a sentence that names the embeddings added to the token embedding."""
    config = trained.model.config
    before = f"{config.ngram - 1} {trained.vocabulary.unit}s before it"
    ngrams = f"Rows for the {before} are added." * (config.ngram > 1)
    positions = f"The row of position {trained.ids.shape[1] - 1} is added, too."
    learned = positions * (config.positions == "learned")
    return f"{ngrams} {learned}".strip() or "Nothing is added to it."


def _explain_head(page: Page, trained: Trained) -> None:
    """Show the scores, weights and values of the head whose ablation raises the loss most."""
    layer, head = 0, 0
    if trained.ids.shape[1] > 1:
        costs = losses_without_heads(trained.model, trained.ids[0]).mean(-1)
        layer, head = divmod(int(costs.argmax()), costs.shape[1])
    attention, q, k, v = [*trained.heads()][layer]
    q, k, v = q[0, head], k[0, head], v[0, head]  # (T, hs), (T, hs), (T, vs)
    output, weights = attend(q, k, v, causal=True)
    scores = k @ q[-1] * q.shape[-1] ** -0.5  # (T,)
    keys = weights[-1].topk(min(SHOWN_KEYS, len(k))).indices
    scale = trained.model.config.attention_scale
    scaled = f" times {scale:g} (model.attention_scale)" * (scale != 1)
    place = f"layer {layer + 1}, head {head + 1}"
    page.section(f"One head: {place}")
    page.paragraph(f"""This is the head without which (**ablated**) the loss on this text would be
        largest. The query of the last position has {q.shape[-1]} numbers. Its score with each key
        is their dot product / sqrt({q.shape[-1]}){scaled}; softmax of all {len(k)} scores gives the
        weights. The largest, with the length |value| of each value:""")
    page.table(
        "keys with the largest weights",
        torch.stack([scores[keys], weights[-1, keys], v[keys].norm(dim=-1)], dim=1),
        trained.names_of(keys),
        ["score", "weight", "|value|"],
    )
    page.paragraph("""The sum of all values, each times its weight, is the output of the head. These
        are its numbers, and those of the query, of the first key in the table and of its value:""")
    first = keys[0]
    vectors = {"query": q[-1], "first key": k[first], "its value": v[first], "output": output[-1]}
    width = min(SHOWN_NUMBERS, *map(len, vectors.values()))
    page.table(
        f"the first {width} numbers of the vectors",
        {name: vector[:width] for name, vector in vectors.items()},
        columns=[str(i) for i in range(width)],
    )
    expected = attention.weigh(*attention.heads(trained.inputs[layer]))[0][0, head, -1]
    page.check("this sum = the production model's", weights[-1] @ v, expected)
