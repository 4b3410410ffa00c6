"""One head of attention: queries, keys and values.

Shapes: B batch, T time, d_in input channels, hs head_size, vs value_size.
"""

import torch
from torch import Tensor, nn

from gpt.lessons import six_words
from gpt.lessons.averaging import causal_softmax
from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained
from gpt.text.display import symbol

SHOWN_KEYS = 8  # keys in a table of a trained model's attention weights


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Compute scaled dot-product attention.

    Args:
        q: queries (..., T, hs).
        k: keys (..., S, hs).
        v: values (..., S, vs).
        causal: whether later keys get weight 0; then S must be T.

    Returns:
        Outputs (..., T, vs) and attention weights (..., T, S).
    """
    scores = q @ k.transpose(-2, -1)  # (..., T, hs) @ (..., hs, S)
    scores = scores * q.shape[-1] ** -0.5  # (..., T, S)
    softmax = causal_softmax if causal else nn.Softmax(dim=-1)
    weights = softmax(scores)
    return weights @ v, weights  # (..., T, vs), (..., T, S)


class Head(nn.Module):
    """Head of attention made of linear layers, whose initial weights have a sensible scale.

    Decoders use causal heads, encoders use heads without a mask. With a `context`, the head
    computes cross-attention: the queries come from x, the keys and values from `context`.
    """

    def __init__(
        self, d_in: int, hs: int, vs: int | None = None, *, bias: bool = False, causal: bool = True
    ) -> None:
        super().__init__()
        self.query = nn.Linear(d_in, hs, bias=bias)
        self.key = nn.Linear(d_in, hs, bias=bias)
        self.value = nn.Linear(d_in, vs or hs, bias=bias)
        self.causal = causal

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute queries from x (B, T, d_in), and keys and values from `context` (B, S, d_in).

        If `context` is None, use x. Return outputs (B, T, value_size) and weights (B, T, S).
        """
        context = x if context is None else context
        q = self.query(x)  # (B, T, d_in) -> (B, T, hs)
        k = self.key(context)  # (B, S, d_in) -> (B, S, hs)
        v = self.value(context)  # (B, S, d_in) -> (B, S, vs)
        return attend(q, k, v, causal=self.causal)


def example(seed: int) -> tuple[Tensor, Head]:
    """Return random x of shape (B, T, C) = (4, 8, 32), and a head of size 16."""
    torch.manual_seed(seed)
    return torch.randn(4, 8, 32), Head(32, 16)


def by_layers() -> Head:
    """Return a `Head` from 3 to 2 channels, with random weights drawn with seed `LINEAR_SEED`."""
    torch.manual_seed(six_words.LINEAR_SEED)
    return Head(3, 2, causal=False)


def copy_matrices(source: six_words.SelfAttention, head: Head) -> Head:
    """Copy the matrices of `source` to `head`, transposed as `nn.Linear` stores them."""
    for name in ("query", "key", "value"):
        getattr(head, name).weight.data.copy_(getattr(source, name).T)
    return head


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    page.section("Queries, keys and values")
    page.paragraph("""Averaging weighs all of the past equally. In a **head** of attention each
        position computes three vectors: a **query** (what it looks for), a **key** (what it
        contains) and a **value** (what it passes on). The **score** of a query and a key is their
        dot product, which is large if they match. Softmax turns the scores of a query into
        **attention weights**. The output is the weighted sum of the values. With queries, keys and
        values as rows of Q, K and V:""")
    page.formula("scaled dot-product attention", "softmax(Q K^T / sqrt(d_k)) V")
    page.source(attend)
    page.paragraph("""K is **transposed**: each query (a row of Q) meets each key (a column of K^T).
        So queries and keys must have one size, d_k or hs (head_size); values may have another (vs).
        3Blue1Brown draws all of this transposed: a column for each query. In **self-attention** all
        three come from one text, in **cross-attention** (lesson masks) keys and values come from
        another.""")
    by_hand, linear, X = six_words.by_parameters(), by_layers(), six_words.X
    six_words.explain(page, by_hand)
    page.section("Linear layers")
    page.paragraph("""Usually the three matrices are linear layers. `nn.Linear(d_in, d_out)` maps
        tensors of any shape (*, d_in) to (*, d_out). It stores its matrix transposed, (d_out,
        d_in), and draws it from -1/sqrt(d_in) to 1/sqrt(d_in), so that outputs are about as large
        as inputs. A **bias**, an option, adds a constant to each query, key and value. GPT-2 has
        biases; most models since have none.""")
    page.source(Head)
    context = linear(X)[0]
    page.table(
        f"context vectors of linear layers (seed {six_words.LINEAR_SEED})",
        context.T,
        ["c0", "c1"],
        six_words.WORDS,
    )
    copied = copy_matrices(by_hand, linear)(X)[0]
    page.check("with copied matrices: Head = SelfAttention", by_hand(X)[0], copied)
    _explain_causal(page, seed)
    page.exercise(
        """In `SelfAttention.forward` delete `/ k.shape[-1] ** 0.5`. The weights of 'journey' on
        itself and 'one' were 0.2264 and 0.0906. Which one grows, and which checks fail?""",
        """The largest weights grow and the smallest shrink, since softmax sees larger differences:
        0.2507 on itself, 0.0687 on 'one'. "These lines = torch's scaled_dot_product_attention"
        fails, and so does the comparison with linear layers.""",
        file="gpt/lessons/six_words.py",
    )


def _explain_causal(page: Page, seed: int) -> None:
    x, head = example(seed)
    B, T, C = x.shape
    future = torch.ones(T, T).tril() == 0
    output, weights = head(x)
    page.section("A causal head")
    page.paragraph(f"""With the causal mask of the lesson `averaging`, the head is that of a
        **decoder**, which generates text. Here are B = {B} sequences of T = {T} tokens with C = {C}
        channels, and hs = 16. Inputs need not come from a vocabulary: these are noise.""")
    shapes = f"x {tuple(x.shape)}, weights {tuple(weights.shape)}, output {tuple(output.shape)}"
    page.formula("shapes", shapes)
    page.by_position("the attention weights of the first sequence", weights[0], future)
    page.paragraph("""The value layer chooses what to pass on. It is linear, so averaging its
        outputs, or applying it to the average of x, gives the same result.""")
    page.check("weights @ V = the values of weights @ x", output, head.value(weights @ x))
    page.paragraph("""Attention is a **directed graph**. An edge leads from each position to itself
        and to each position after it, and carries its value. The mask decides which edges exist,
        the data their weights: row t has the weights of the edges into t. No edge leads from one
        sequence of a batch to another: they never mix.""")
    page.check("each alone = all at once", output, torch.cat([head(one[None])[0] for one in x]))


def explain_trained(page: Page, trained: Trained) -> None:
    """Show the largest attention weights of the last query in layer 1, head 1."""
    attention, q, k, v = next(trained.heads())
    _, weights = attend(q, k, v, causal=True)
    T = len(trained.characters)
    largest = weights[0, 0, -1].topk(min(SHOWN_KEYS, T))
    rows = [f"t={t} {symbol(trained.characters[t])}" for t in largest.indices.tolist()]
    others = 1 - largest.values.sum(dim=0, keepdim=True)
    page.table(
        f"layer 1, head 1: the largest attention weights of the last query, t={T - 1} "
        f"{symbol(trained.characters[-1])}, and the sum of the others",
        torch.cat([largest.values, others]).unsqueeze(1),
        [*rows, f"{T - len(rows)} others"],
    )
    expected = attention.explicit(trained.inputs[0])[1]
    page.check("this lesson's head = the production model's", weights, expected)
