"""Masks: which keys a query may attend to. The second half of the lesson `heads`.

Masks are boolean, (T, S), and True where query t may attend to key s. Additive masks are numbers.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons.head import Head, attend
from gpt.lessons.lesson_page import Page, names


def causal(T: int) -> Tensor:
    """Return the causal mask (T, T): each position attends to itself and to earlier ones."""
    return torch.ones(T, T, dtype=torch.bool).tril()


def additive(allowed: Tensor) -> Tensor:
    """Return a mask to add to the scores: 0 where `allowed` is True, else -3.4e38."""
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(allowed.shape).masked_fill(~allowed, lowest)


def attend_added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute attention as `attend` does, but add `mask` (T, S) to the scores."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + mask
    weights = scores.softmax(dim=-1)
    return weights @ v, weights


def influence(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return a table (T, T): the largest change of output t (row) if input s (column) is negated.

    This tests whether `step` is causal: no output before s may change. x is (B, T, C).
    """
    columns, before = [], step(x)
    for s in range(x.shape[1]):
        changed = x.clone()
        changed[:, s] *= -1
        columns.append((step(changed) - before).abs().amax(dim=(0, 2)))
    return torch.stack(columns, dim=1)


def explain_masks(page: Page, fused: nn.Module, x: Tensor) -> None:
    """Write the part about masks on `page`, using causal attention `fused` and x (2, 16, 16)."""
    page.paragraph("""The **causal mask** is made once, for the longest text that the model takes.
        It is cropped to the t characters of the input (`self.future[:t, :t]`). It is a **buffer**
        of the module, which moves with the module to another device. It is not trained, because an
        optimizer trains only `parameters()`. It is not `persistent`, so it is not in
        `state_dict()`, which a checkpoint stores. A prompt may be of any length:""")
    page.check("5 characters alone = the first 5 of 16", fused(x[:, :5]), fused(x)[:, :5])
    one = Head(16, 8)
    x = x[:, :6]
    q, k, v = one.query(x), one.key(x), one.value(x)
    page.paragraph("""Some implementations, such as the eager one of Hugging Face's models, add the
        mask to the scores (**additive mask**): 0 where a query may attend, and the lowest number of
        float32, -3.4e38, where it may not. Softmax turns both -3.4e38 and -inf into 0. The two
        differ if a query may attend to nothing, as in a text that was padded to the length of
        others. -inf everywhere gives 0 / 0, which is NaN. The lowest number everywhere gives equal
        weights, which nobody uses.""")
    page.source(additive)
    plain, added = attend(q, k, v, causal=True), attend_added(q, k, v, additive(causal(6)))
    page.check("a boolean mask = an additive mask", plain[0], added[0])
    _explain_inversion(page, one, fused, x)
    page.paragraph("""An **encoder** (BERT) has no mask: each position attends to the whole text,
        including what follows. It represents a text that already exists, for example to classify it
        or to fill in a blank. It cannot learn to predict the next character: in training it would
        see that character.""")
    page.paragraph("""A **decoder** (GPT, the model of this program) has the causal mask. Each
        position predicts the character after it from those up to it, so that one text of T
        characters trains T predictions at once.""")
    page.paragraph("""An **encoder-decoder** (the first transformer, for translation; T5) has two
        texts and three attentions: the source attends to itself without a mask, the target to
        itself with the causal mask, and the target to all of the source (**cross-attention**).""")
    page.paragraph("""A decoder generates text in an **autoregressive** way: it predicts a
        character, appends it, and predicts the next from the longer text. Each step adds one row
        to the mask. The rows above it never see the new character, so keys and values are kept (a
        **key-value cache**), and only the new query is computed. This query needs no mask, because
        all keys belong to the past.""")
    page.check(
        "the last query alone, without a mask = the last row of all, with the causal mask",
        attend(q[:, -1:], k, v, causal=False)[0],
        one(x)[0][:, -1:],
    )
    cross, context = Head(16, 8, causal=False), torch.randn(1, 5, 16)
    x = x[:1, :3]
    output, weights = cross(x, context)
    page.paragraph("""In **cross-attention** the queries come from one text, the keys and values
        from another. Nothing else changes. The second text may have any length: here 3 queries
        attend to 5 keys, and the output has a row for each query.""")
    rows_and_columns = names("query t", 3), names("key s", 5)
    page.table("attention weights of cross-attention", weights[0], *rows_and_columns)
    q, k, v = cross.query(x), cross.key(context), cross.value(context)
    page.check(
        "cross-attention by hand = torch's scaled_dot_product_attention",
        output,
        F.scaled_dot_product_attention(q, k, v),
    )
    page.check_differ("the output, attending to the second text or to x", output, cross(x, x)[0])


def _explain_inversion(page: Page, one: Head, fused: nn.Module, x: Tensor) -> None:
    """Show a mask that is inverted by mistake, and the test that detects the mistake."""

    def inverted(x: Tensor) -> tuple[Tensor, Tensor]:
        return attend_added(one.query(x), one.key(x), one.value(x), additive(~causal(x.shape[1])))

    page.paragraph("""A common mistake is the **inverted mask**. In torch's nn.MultiheadAttention a
        boolean mask is True where a query may NOT attend. In its scaled_dot_product_attention it is
        True where it may. If the mask is the wrong way round, each position attends to those after
        it. The last query may attend to nothing. In the additive form, which the table shows, it
        gets equal weights. nn.MultiheadAttention returns NaN for it if it also returns the weights
        (`need_weights=True`, the default); scaled_dot_product_attention returns zeros.""")
    weights = inverted(x)[1][0]
    page.by_position("attention weights with the inverted mask", weights, weights == 0)
    future, layer = ~causal(x.shape[1]), nn.MultiheadAttention(x.shape[-1], 2, batch_first=True)
    last, _ = layer(x, x, x, attn_mask=~future, need_weights=True)
    page.check("nn.MultiheadAttention: NaN", last[:, -1].isnan().float(), torch.ones(2, 16))
    last = F.scaled_dot_product_attention(x, x, x, attn_mask=future)
    page.check("scaled_dot_product_attention: zeros", last[:, -1], torch.zeros(2, 16))
    page.paragraph("""In this form no shape is wrong, each row sums to 1, and the training loss
        falls faster than ever, since the character to predict is part of the input. Only the
        generated text is nonsense. The test of causality detects it: if the input changes at one
        position, no output before it may change.""")
    page.source(influence)
    changes = influence(lambda x: inverted(x)[0], x)
    caption = "inverted mask: change of the output at t (row) with the input at s (column)"
    page.table(caption, changes, names("t", len(changes)), names("s", len(changes)))
    none = torch.zeros_like(changes)
    claim = "inverted mask: outputs with and without a change of a later input"
    page.check_differ(claim, changes.triu(1), none)
    claim = "causal mask, one head: no output depends on a later input"
    page.check(claim, influence(lambda x: one(x)[0], x).triu(1), none)
    page.check("nor in the 8 heads", influence(fused, x).triu(1), none)
