"""Masks: which keys a query may attend to. The second half of the lesson `heads`.

A mask here is boolean, (T, S), and True where query t may attend to key s.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons.head import Head, attend
from gpt.lessons.page import Page


def causal(T: int) -> Tensor:
    """(T, T): each position attends to itself and to those before it."""
    return torch.ones(T, T, dtype=torch.bool).tril()


def encoder_decoder(S: int, T: int) -> Tensor:
    """(S + T, S + T): an encoder's text of S, then a decoder's of T, which sees both."""
    allowed = torch.ones(S + T, S + T, dtype=torch.bool)
    allowed[:S, S:] = False
    allowed[S:, S:] = causal(T)
    return allowed


def additive(allowed: Tensor) -> Tensor:
    """A mask to be added to the scores: 0 where attention is allowed, else the lowest float."""
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(allowed.shape).masked_fill(~allowed, lowest)


def attend_added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """`attend` with an additive mask (T, S): output (..., T, vs) and weights (..., T, S)."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + mask
    weights = scores.softmax(dim=-1)
    return weights @ v, weights


def influence(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(T, T): how much the output at t (row) changes with the input at s (column).

    The test of causality: in x (B, T, C) one position is changed at a time, and no output before
    it may change.
    """
    columns, before = [], step(x)
    for s in range(x.shape[1]):
        changed = x.clone()
        changed[:, s] *= -1
        columns.append((step(changed) - before).abs().amax(dim=(0, 2)))
    return torch.stack(columns, dim=1)


def explain_masks(page: Page, fused: nn.Module, x: Tensor) -> None:
    """Write the part of the page about masks; `fused` has a mask made for more than 5 positions."""
    page.paragraph(
        """The **causal mask** is made once, for the longest text that the model takes, and cropped
        to the t characters that came in (`self.future[:t, :t]`). It is a **buffer** of the module,
        which moves with it to another device. It is not trained, as an optimizer is given
        `parameters()`; and as it is not `persistent`, a checkpoint, `state_dict()`, does not hold
        it."""
    )
    held = [dict(fused.named_parameters()), fused.state_dict(), dict(fused.named_buffers())]
    page.check(
        "masks in parameters(), state_dict() and buffers() = 0, 0 and 1",
        torch.tensor([float("future" in names) for names in held]),
        torch.tensor([0.0, 0.0, 1.0]),
    )
    page.paragraph("A prompt may be of any length:")
    page.check("5 characters alone = the first 5 of 16", fused(x[:, :5]), fused(x)[:, :5])
    one = Head(16, 8)
    x = x[:, :6]
    parts = one.query(x), one.key(x), one.value(x)
    page.paragraph(
        """Hugging Face's models add the mask to the scores instead (**additive mask**): 0 where a
        query may attend, and the lowest number of float32, -3.4e38, where not. Softmax makes 0 of
        both that and -inf. They differ where a query may attend to nothing, as in a text that was
        padded to the length of others: -inf everywhere gives 0 / 0, the lowest number everywhere
        gives equal weights, which nobody uses."""
    )
    page.source(additive)
    page.check(
        "a boolean mask = an additive mask",
        attend(*parts, causal=True)[0],
        attend_added(*parts, additive(causal(6)))[0],
    )
    nothing = torch.zeros(4, dtype=torch.bool)
    page.table(
        "attention weights where everything is masked",
        torch.stack(
            [
                torch.zeros(4).masked_fill(~nothing, float("-inf")).softmax(-1),
                additive(nothing).softmax(-1),
            ]
        ),
        ["-inf", "-3.4e38"],
    )
    _explain_inversion(page, one, fused, x)
    _explain_arrangements(page)
    page.check(
        "the last query alone, without a mask = the last row of all, with the causal mask",
        attend(parts[0][:, -1:], *parts[1:], causal=False)[0],
        one(x)[0][:, -1:],
    )
    _explain_cross_attention(page, x[:1, :3])


def _explain_inversion(page: Page, one: Head, fused: nn.Module, x: Tensor) -> None:
    """A mask that is the wrong way round, and the test that notices."""

    def inverted(x: Tensor) -> tuple[Tensor, Tensor]:
        return attend_added(one.query(x), one.key(x), one.value(x), additive(~causal(x.shape[1])))

    positions = [f"t={t}" for t in range(x.shape[1])]
    page.paragraph(
        """A common mistake is the **inverted mask**: in torch's nn.MultiheadAttention a boolean
        mask is True where a query may NOT attend, in its scaled_dot_product_attention True where it
        may. The wrong way round, each position attends to those after it. This is the additive
        form. The last query may attend to nothing: it gets equal weights here, NaN with -inf
        (nn.MultiheadAttention), and an output of zeros in scaled_dot_product_attention."""
    )
    page.table(
        "attention weights with the inverted mask: query position (row), key position (column)",
        weights := inverted(x)[1][0],
        positions,
        positions,
        mask=weights == 0,
    )
    page.paragraph(
        """NaN is noticed at once. But in this form no shape is wrong, each row sums to 1, and in
        training the loss falls faster than ever, since the character to be predicted is part of the
        input; only what is generated is nonsense. The test of causality notices: change the input
        at one position, and see which outputs change. None before it may."""
    )
    page.source(influence)
    for name, step in (("causal", lambda x: one(x)[0]), ("inverted", lambda x: inverted(x)[0])):
        page.table(
            f"{name} mask: change of the output at t (row) with the input at s (column)",
            influence(step, x),
            positions,
            [f"s={s}" for s in range(x.shape[1])],
        )
    causal_leak = influence(lambda x: one(x)[0], x).triu(1)
    none = torch.zeros_like(causal_leak)
    page.check("causal mask: no output depends on a later input", causal_leak, none)
    page.check("nor in the 8 heads", influence(fused, x).triu(1), none)
    page.check_differ(
        "inverted mask: outputs with and without a change of a later input",
        influence(lambda x: inverted(x)[0], x).triu(1),
        none,
    )


def _explain_arrangements(page: Page) -> None:
    """Encoder, decoder, encoder-decoder and autoregressive: a paragraph and a mask each."""

    def show(caption: str, allowed: Tensor, rows: list[str], columns: list[str]) -> None:
        page.table(f"{caption}: 1 where a query (row) may attend to a key (column)", allowed.int(),
                   rows, columns, mask=~allowed)  # fmt: skip

    source, target = [f"s={s}" for s in range(3)], [f"t={t}" for t in range(4)]
    page.paragraph(
        """An **encoder** (BERT) has no mask: each position attends to the whole text, what follows
        included. It represents a text that is there already, to classify it, say, or to fill in a
        blank. It cannot generate: in training each position would see the answer."""
    )
    show("encoder", torch.ones(4, 4, dtype=torch.bool), target, target)
    page.paragraph(
        """A **decoder** (GPT, the model of this program) has the causal mask. Each position
        predicts the character after it from those up to it, so that one text of T characters
        trains T predictions at once."""
    )
    show("decoder", causal(4), target, target)
    page.paragraph(
        """An **encoder-decoder** (the first transformer, for translation; T5) has two texts. The
        encoder reads the source s without a mask. In the decoder a position of the target t attends
        to the target up to it (self-attention) and to all of the source (cross-attention)."""
    )
    show("encoder-decoder", encoder_decoder(3, 4), source + target, source + target)
    page.paragraph(
        """**Autoregressive** is how a decoder generates: it predicts a character, appends it, and
        predicts the next from the longer text. From a prompt of 3 characters, each step adds one
        row to the mask. The rows above it never change, as they do not see what is appended: so
        keys and values are kept (a **key-value cache**), and only the new query is computed, for
        which nothing needs to be masked."""
    )
    steps = [f"step {t - 2}: t={t}" for t in (2, 3, 4, 5)]
    show("autoregressive", causal(6)[2:], steps, [f"t={t}" for t in range(6)])


def _explain_cross_attention(page: Page, x: Tensor) -> None:
    S, T = 5, x.shape[1]
    cross, context = Head(16, 8, causal=False), torch.randn(1, S, 16)
    output, weights = cross(x, context)
    page.paragraph(
        f"""In **cross-attention** the queries come from one text, the keys and values from another.
        Nothing else changes. The second text may have any length: here {T} queries attend to {S}
        keys, and the output has a row for each query."""
    )
    page.table(
        "attention weights of cross-attention",
        weights[0],
        [f"query t={t}" for t in range(T)],
        [f"key s={s}" for s in range(S)],
    )
    page.check(
        "cross-attention by hand = torch's scaled_dot_product_attention",
        output,
        F.scaled_dot_product_attention(cross.query(x), cross.key(context), cross.value(context)),
    )
    page.check_differ("the output, attending to the second text or to x", output, cross(x, x)[0])
    changed = context.clone()
    changed[:, -1] *= -1
    smallest = (cross(x, changed)[0] - output).abs().amax(-1).min()
    page.check_differ(
        "each output, before and after a change of the second text's last vector",
        smallest,
        torch.zeros_like(smallest),
    )
