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

LARGEST = 8  # number of attention weights in a table


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return outputs (..., T, vs), weights (..., T, S). If `causal`, later keys get weight 0."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (..., T, S)
    weights = causal_softmax(scores) if causal else scores.softmax(dim=-1)
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
        q, k, v = self.query(x), self.key(context), self.value(context)
        return attend(q, k, v, causal=self.causal)


def example(seed: int) -> tuple[Tensor, Head]:
    """Return random x of shape (B, T, C) = (4, 8, 32), and a head of size 16."""
    torch.manual_seed(seed)
    return torch.randn(4, 8, 32), Head(32, 16)


def by_layers() -> Head:
    """Return a `Head` from 3 channels to 2, whose weights are drawn with `LINEAR_SEED`."""
    torch.manual_seed(six_words.LINEAR_SEED)
    return Head(3, 2, causal=False)


def copy_matrices(source: six_words.ParameterHead, head: Head) -> Head:
    """Copy the matrices of `source` to `head`, transposed as `nn.Linear` stores them."""
    for name in ("query", "key", "value"):
        getattr(head, name).weight.data.copy_(getattr(source, name).T)
    return head


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    page.paragraph("""Averaging weighs all of the past equally. In a **head** of attention each
        position computes three vectors: a **query** (what it looks for), a **key** (what it
        contains) and a **value** (what it passes on). The **score** of a query and a key is their
        dot product, which is large if they match. Softmax turns the scores of a query into
        **attention weights**. The output of the query is the sum of the values, each times its
        weight. Q, K and V have the queries, keys and values as rows, and a key has d_k numbers (the
        next lesson says why the scores are divided by sqrt(d_k)):""")
    page.formula("scaled dot-product attention", "softmax(Q K^T / sqrt(d_k)) V")
    page.source(attend)
    by_hand, linear, X = six_words.by_parameters(), by_layers(), six_words.X
    six_words.explain(page, by_hand)
    page.paragraph(f"""Usually the three matrices are linear layers, `nn.Linear(d_in, d_out,
        bias=False)`. With seed {six_words.LINEAR_SEED} their context vectors differ from those
        above, because the weights are drawn differently. `torch.rand` draws from 0 to 1.
        `nn.Linear` draws from -1/sqrt(d_in) to 1/sqrt(d_in), here .5774, so that outputs are about
        as large as inputs, however many inputs there are. It also stores the matrix transposed,
        (d_out, d_in). If the matrices above are transposed and copied to the layers, both forms
        agree. (`context`, a second text, is for cross-attention in the lesson `heads`.)""")
    page.source(Head.forward)
    page.table("context vectors of the linear layers", linear(X)[0], six_words.WORDS)
    page.check_differ("matrices drawn with 0 to 1, or by nn.Linear", by_hand(X)[0], linear(X)[0])
    copied = copy_matrices(by_hand, linear)(X)[0]
    page.check("with copied weights: three matrices = linear layers", by_hand(X)[0], copied)
    page.paragraph("""A **bias** adds a constant to each query, key and value. That is the same as
        one more channel of x that is always 1. GPT-2 has biases; most models since have none. Here
        d_out differs from d_in. In a GPT with one head both are C, so that x and the output can be
        added. With several heads, each outputs C / n_head channels.""")
    _explain_causal(page, seed)
    page.exercise(
        """In `ParameterHead.forward` (six_words.py) delete `/ k.shape[-1] ** 0.5`. The weight of
        'journey' on itself was 0.2264, and on 'one' 0.0906. Which grows, which shrinks, and which
        checks fail?""",
        """The largest weights grow and the smallest shrink, since softmax sees larger differences:
        0.2507 on itself, 0.0687 on 'one'. "These lines = torch's scaled_dot_product_attention"
        fails, and so does the comparison with linear layers.""",
    )


def _explain_causal(page: Page, seed: int) -> None:
    x, head = example(seed)
    B, T, C = x.shape
    future = torch.ones(T, T).tril() == 0
    output, weights = head(x)
    page.paragraph(f"""A model that predicts the next token must not see it. With the causal mask of
        the lesson `averaging`, the head is that of a **decoder**, a model that generates text. Here
        are B = {B} sequences of T = {T} tokens, C = {C} channels of noise, head_size 16:""")
    scores = head.query(x[0]) @ head.key(x[0]).T * 16**-0.5
    masked = scores.masked_fill(future, float("-inf"))
    page.by_position("first sequence: the masked scores, before softmax", masked)
    page.by_position("the attention weights", weights[0], future)
    page.paragraph(f"""What is averaged? Without values it would be x itself: weights @ x, with all
        its {C} channels. The value layer chooses what to pass on, in 16 channels. The layer
        is linear, so it gives the same result whether it is applied before or after averaging.""")
    page.check("weights @ V = the values of weights @ x", output, head.value(weights @ x))
    page.paragraph("""Attention is a **directed graph**. An edge leads from each position to itself
        and to each position after it, and carries its value. The mask decides which edges exist,
        the data their weights: row t of the table above has the weights of the edges into t. No
        edge leads from one sequence of a batch to another: they never mix.""")
    page.check("each alone = all at once", output, torch.cat([head(one[None])[0] for one in x]))


def explain_trained(page: Page, trained: Trained) -> None:
    """Show the largest attention weights of the last query in layer 1, head 1."""
    attention, q, k, v = next(trained.heads())
    _, weights = attend(q, k, v, causal=True)
    T = len(trained.characters)
    largest = weights[0, 0, -1].topk(min(LARGEST, T))
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
