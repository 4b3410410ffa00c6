"""One head of attention: queries, keys and values.

Shapes: B batch, T time, `hs` numbers in a query or key, `vs` in a value. The six words, their
vectors and the seeds are from Raschka, "Build a Large Language Model (From Scratch)", chapter 3.
"""

import torch
from torch import Tensor, nn

from gpt.lessons.averaging import causal_softmax
from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained
from gpt.text.display import symbol

SHOWN_KEYS = 8  # keys in a table of a trained model's attention weights
WORDS = ["Your", "journey", "starts", "with", "one", "step"]
QKV_NAMES = ["q0", "q1", "k0", "k1", "v0", "v1"]  # columns of the three matrices
X = torch.tensor(  # (6, 3): a vector for each word
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)
PARAMETER_SEED, LINEAR_SEED = 123, 789  # seeds of the matrices and of the linear layers


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Compute scaled dot-product attention.

    Args:
        q: queries (..., T, head size).
        k: keys (..., S, head size).
        v: values (..., S, value size).
        causal: if True, give weight 0 to keys after the query's position; S must be T.

    Returns:
        Outputs (..., T, value size) and attention weights (..., T, S).
    """
    scores = q @ k.transpose(-2, -1)  # (..., T, hs) @ (..., hs, S)
    scores = scores * q.shape[-1] ** -0.5  # (..., T, S)
    softmax = causal_softmax if causal else nn.Softmax(dim=-1)
    weights = softmax(scores)
    return weights @ v, weights  # (..., T, vs), (..., T, S)


class SelfAttention(nn.Module):
    """Naive head of attention: three parameter matrices, without bias or mask."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.rand(d_in, d_out))
        self.key = nn.Parameter(torch.rand(d_in, d_out))
        self.value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (..., T, channels) to outputs (..., T, head size) and weights (..., T, T)."""
        q = x @ self.query  # (..., T, d_in) @ (d_in, d_out)
        k = x @ self.key  # (..., T, d_out)
        v = x @ self.value  # (..., T, d_out)
        scores = q @ k.transpose(-2, -1)  # (..., T, T)
        weights = torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1)
        return weights @ v, weights  # (..., T, d_out), (..., T, T)


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
        """Compute queries from x (B, T, channels), keys and values from `context` (B, S, channels).

        If `context` is None, use x. Return outputs (B, T, value size) and weights (B, T, S).
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


def by_parameters() -> SelfAttention:
    """Return a `SelfAttention(3, 2)` whose matrices are drawn with `PARAMETER_SEED`."""
    torch.manual_seed(PARAMETER_SEED)
    return SelfAttention(3, 2)


def by_layers() -> Head:
    """Return a `Head(3, 2)` without a mask, whose weights are drawn with `LINEAR_SEED`."""
    torch.manual_seed(LINEAR_SEED)
    return Head(3, 2, causal=False)


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
        three come from one text, in **cross-attention** (lesson `masks`) keys and values come from
        another.""")
    by_hand, linear = by_parameters(), by_layers()
    _explain_six_words(page, by_hand)
    page.section("Linear layers")
    page.paragraph("""Usually the three matrices are linear layers. `nn.Linear(d_in, d_out)` maps
        tensors of any shape (*, d_in) to (*, d_out). It stores its matrix transposed, (d_out,
        d_in), and draws it from -1/sqrt(d_in) to 1/sqrt(d_in), so that outputs are about as large
        as inputs. A **bias**, an option, adds a constant to each query, key and value. GPT-2 has
        biases; most models since have none.""")
    page.source(Head)
    context = linear(X)[0]
    page.table(
        f"context vectors of linear layers (seed {LINEAR_SEED})",
        context.T,
        ["c0", "c1"],
        WORDS,
    )
    for name in ("query", "key", "value"):
        getattr(linear, name).weight.data.copy_(getattr(by_hand, name).T)
    page.check("with copied matrices: Head = SelfAttention", by_hand(X)[0], linear(X)[0])
    _explain_causal(page, seed)
    page.exercise(
        """In `SelfAttention.forward` delete `/ k.shape[-1] ** 0.5`. The weights of 'journey' on
        itself and 'one' were 0.2264 and 0.0906. Which one grows, and which checks fail?""",
        """The largest weights grow and the smallest shrink, since softmax sees larger differences:
        0.2507 on itself, 0.0687 on 'one'. "These lines = torch's scaled_dot_product_attention"
        fails, and so does the comparison with linear layers.""",
    )


def _explain_six_words(page: Page, head: SelfAttention) -> None:
    """Explain how `head` computes context vectors: first for 'journey', then for all six words."""
    matrices = torch.cat([head.query, head.key, head.value], dim=1)
    q, k, v = X @ head.query, X @ head.key, X @ head.value
    scores = q @ k.T  # (6, 6)
    context, weights = head(X)
    page.section("Six words")
    page.paragraph(f"""Here are numbers small enough for a calculator: six words (the tokens here)
        with vectors of d_in = 3 numbers, and no mask yet. Three matrices of 3 x 2, drawn with seed
        {PARAMETER_SEED}, make queries, keys and values of d_out = d_k = 2 numbers.""")
    page.table("the three matrices", matrices, columns=QKV_NAMES)
    page.table(
        "x: a vector for each word, and x @ the matrices: Q, K, V",
        torch.cat([X, q, k, v], dim=1).T,
        ["x0", "x1", "x2", *QKV_NAMES],
        WORDS,
    )
    page.paragraph("""Take the second word, 'journey'. Its score for each word is the query of
        'journey' times the key of that word. Softmax of the scores / sqrt(2) is the weights. The
        sum of all values, each times its weight, is its **context vector**; the code computes all
        six at once.""")
    page.table(
        "the query of 'journey' (row 2 of Q) and each word's key",
        {"score": scores[1], "/ sqrt(2)": scores[1] / 2**0.5, "weight": weights[1]},
        columns=WORDS,
    )
    page.source(SelfAttention)
    page.table("context vectors: weights @ V", context.T, ["c0", "c1"], WORDS)
    fused = nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    page.check("these lines = torch's scaled_dot_product_attention", context, fused)
    page.paragraph("""An `nn.Parameter` is listed in `parameters()`, which an optimizer trains, and
        in `state_dict()`, which a checkpoint stores. Here x is **frozen**. In a model x is trained,
        too: each vector is a row of an **embedding** table, which is one more parameter.""")


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
    rows = trained.names_of(largest.indices)
    others = 1 - largest.values.sum(dim=0, keepdim=True)
    page.table(
        f"layer 1, head 1: the largest attention weights of the last query, t={T - 1} "
        f"{symbol(trained.characters[-1])}, and the sum of the others",
        torch.cat([largest.values, others]).unsqueeze(1),
        [*rows, f"{T - len(rows)} others"],
    )
    expected = attention.explicit(trained.inputs[0])[1]
    page.check("this lesson's head = the production model's", weights, expected)
