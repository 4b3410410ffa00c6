"""Masks: which keys a query may attend to.

A mask of T queries and S keys has the shape (T, S). A boolean mask is True where a query may attend
to a key. An additive mask is added to the scores: it has 0 for True, -inf or -3.4e38 for False.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons.head import Head, attend
from gpt.lessons.lesson_page import Page, names
from gpt.lessons.small_models import C, OneHead, T, sample_text, train
from gpt.lessons.trained import Trained
from gpt.text.corpus import load_corpus
from gpt.text.sources import open_source


def causal(T: int) -> Tensor:
    """Return the causal mask (T, T): True where the key is not after the query."""
    return torch.ones(T, T, dtype=torch.bool).tril()


def additive(allowed: Tensor) -> Tensor:
    """Return an additive mask: 0 where `allowed` is True, else the lowest float32, -3.4e38."""
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(allowed.shape).masked_fill(~allowed, lowest)


def attend_added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute attention as `attend` does, but with an additive `mask` (T, S)."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + mask
    weights = scores.softmax(dim=-1)
    return weights @ v, weights


class InvertedHead(Head):
    """Head with the inverted causal mask: each query but the last attends to later keys only."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map x (B, T, channels) to outputs (B, T, size), weights (B, T, T). Ignore `context`."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        return attend_added(q, k, v, additive(~causal(x.shape[1])))


def influence(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Measure how much each output of `step` changes with each input; return a matrix (T, T).

    Row t, column s is the largest change of output t if position s of x (B, T, C) is negated.
    """
    columns, before = [], step(x)
    for s in range(x.shape[1]):
        changed = x.clone()
        changed[:, s] *= -1
        columns.append((step(changed) - before).abs().amax(dim=(0, 2)))
    return torch.stack(columns, dim=1)


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    torch.manual_seed(seed)
    x, one = torch.randn(2, 6, 16), Head(16, 8)
    q, k, v = one.query(x), one.key(x), one.value(x)
    page.section("Encoder, decoder, cross-attention")
    page.paragraph("""An **encoder** (BERT) has no mask: each position attends to the whole text,
        including what follows. It represents a text that already exists, for example to classify it
        or to fill in a blank. It cannot learn to predict the next character: in training it would
        see that character.""")
    page.paragraph("""A **decoder** (GPT, the model of this program) has the causal mask. Each
        position predicts the character after it from those up to it, so that one text of T
        characters trains T predictions at once.""")
    page.paragraph("""An **encoder-decoder** (the first transformer, for translation; T5) has two
        texts and three attentions:""")
    page.drawing(
        "a source of S tokens and a target of T tokens",
        [
            "source to source   (S, S)  no mask",
            "target to target   (T, T)  causal mask",
            "target to source   (T, S)  no mask: cross-attention",
        ],
    )
    _explain_cross_attention(page)
    page.paragraph("""A decoder generates text in an **autoregressive** way: it predicts a
        character, appends it, and predicts the next from the longer text. Each step adds one row
        to the mask. The rows above it never see the new character, so keys and values are kept (a
        **key-value cache**), and only the new query is computed. It needs no mask, because
        all keys belong to the past.""")
    page.check(
        "the last query alone, without a mask = the last row of all, with the causal mask",
        attend(q[:, -1:], k, v, causal=False)[0],
        one(x)[0][:, -1:],
    )
    page.section("Two ways to write a mask")
    page.paragraph("""Some implementations, such as the eager one of Hugging Face's models, add the
        mask to the scores (**additive mask**): 0 where a query may attend, and the lowest number of
        float32, -3.4e38, where it may not. Softmax turns both -3.4e38 and -inf into 0. The two
        differ if a query may attend to nothing, as in a text that was padded to the length of
        others: -inf everywhere gives 0 / 0, which is NaN, and the lowest number everywhere gives
        equal weights.""")
    page.source(causal, additive)
    plain, added = attend(q, k, v, causal=True), attend_added(q, k, v, additive(causal(6)))
    page.check("a boolean mask = an additive mask", plain[0], added[0])
    _explain_inversion(page, one, x)
    _train_inverted(page, seed)
    page.exercise(
        """In `causal` write .tril(-1) for .tril(), so that no position attends to itself. Which
        position may then attend to nothing, and which checks fail?""",
        """Position 0, whose weights become equal, over the future, too. "A boolean mask = an
        additive mask" fails. The inverted mask now lets each position attend to itself, so no
        query is without keys: nn.MultiheadAttention returns numbers instead of NaN, and
        scaled_dot_product_attention no zeros. Both checks fail.""",
    )


def _explain_cross_attention(page: Page) -> None:
    x, context, cross = torch.randn(1, 3, 16), torch.randn(1, 5, 16), Head(16, 8, causal=False)
    output, weights = cross(x, context)
    page.paragraph("""In **cross-attention** the queries come from one text, the keys and values
        from another. Nothing else changes. Here 3 queries attend to 5 keys, and the output has a
        row for each query.""")
    rows_and_columns = names("query t", 3), names("key s", 5)
    page.table("attention weights of cross-attention", weights[0], *rows_and_columns)
    q, k, v = cross.query(x), cross.key(context), cross.value(context)
    page.check(
        "cross-attention by hand = torch's scaled_dot_product_attention",
        output,
        F.scaled_dot_product_attention(q, k, v),
    )
    page.check_differ("the output, attending to the second text or to x", output, cross(x, x)[0])


def _explain_inversion(page: Page, one: Head, x: Tensor) -> None:
    """Show a mask that is inverted by mistake, and the test that detects the mistake."""
    wrong = InvertedHead(16, 8)
    wrong.load_state_dict(one.state_dict())
    page.section("The inverted mask")
    page.paragraph("""A common mistake is the **inverted mask**. In torch's nn.MultiheadAttention a
        boolean mask is True where a query may NOT attend. In its scaled_dot_product_attention it is
        True where it may. If the mask is the wrong way round, each position attends to those after
        it. The last query may attend to nothing. In the additive form, which the table shows, it
        gets equal weights. nn.MultiheadAttention returns NaN for it if it also returns the weights
        (`need_weights=True`, the default); scaled_dot_product_attention returns zeros.""")
    weights = wrong(x)[1][0]
    page.by_position("attention weights with the inverted mask", weights, weights == 0)
    future, layer = ~causal(x.shape[1]), nn.MultiheadAttention(x.shape[-1], 2, batch_first=True)
    last, _ = layer(x, x, x, attn_mask=~future, need_weights=True)
    page.check(
        "the last output of nn.MultiheadAttention = NaN",
        last[:, -1].isnan().float(),
        torch.ones(2, 16),
    )
    last = F.scaled_dot_product_attention(x, x, x, attn_mask=future)
    page.check(
        "the last output of scaled_dot_product_attention = 0", last[:, -1], torch.zeros(2, 16)
    )
    page.paragraph("""In the additive form no shape is wrong and each row sums to 1. The test of
        **causality** detects the mistake: if the input changes at one position, no output before it
        may change.""")
    page.source(influence)
    changes = influence(lambda x: wrong(x)[0], x)
    caption = "inverted mask: change of the output at t (row) with the input at s (column)"
    page.table(caption, changes, names("t", len(changes)), names("s", len(changes)))
    none = torch.zeros_like(changes)
    claim = "inverted mask: outputs with and without a change of a later input"
    page.check_differ(claim, changes.triu(1), none)
    claim = "causal mask: outputs with a change of a later input = without it"
    page.check(claim, influence(lambda x: one(x)[0], x).triu(1), none)


def _train_inverted(page: Page, seed: int) -> None:
    """Train `OneHead` with the causal and with the inverted mask; show losses and samples."""
    corpus = load_corpus(open_source("python-docs"))
    losses, samples = dict[str, list[float]](), list[str]()
    for name, kind in {"causal": Head, "inverted": InvertedHead}.items():
        torch.manual_seed(seed)
        model = OneHead(len(corpus.vocabulary), T, C)
        model.head = kind(C, C)
        losses[name] = train(model, corpus, seed)[:2]
        samples.append(f"{name:<10}{sample_text(model, corpus, seed)}")
    page.paragraph("""Train the model `one head` of the lesson `training` twice: with the causal
        mask and with the inverted one. The table compares the losses. With the inverted mask the
        loss falls to almost nothing, because the character to predict is part of the input.
        But a text that is being written has no next character yet:""")
    page.table(
        "nats per character of the val split of python-docs",
        torch.tensor(list(losses.values())),
        [*losses],
        ["before", "after"],
    )
    page.drawing("samples", samples)


def explain_trained(page: Page, trained: Trained) -> None:
    """Check that the trained model is causal."""
    changed = trained.ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % len(trained.vocabulary)
    before, after = trained.model(trained.ids), trained.model(changed)
    after[:, -1] = before[:, -1]  # these logits may change
    page.check(
        "logits before the last character = logits with another last character", before, after
    )
