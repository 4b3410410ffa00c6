"""One head of attention, computed for six words: the first half of the lesson `head`.

The words, their vectors, the random seeds and all numbers are those of Raschka, "Build a Large
Language Model (From Scratch)", chapter 3.
"""

import torch
from torch import Tensor, nn

from gpt.lessons.lesson_page import Page

WORDS = ["Your", "journey", "starts", "with", "one", "step"]
SIDES = ["q0", "q1", "k0", "k1", "v0", "v1"]  # columns of the three matrices
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


class SelfAttention(nn.Module):
    """Naive head of attention: three parameter matrices, without bias or mask."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.rand(d_in, d_out))
        self.key = nn.Parameter(torch.rand(d_in, d_out))
        self.value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (..., T, d_in) to outputs (..., T, d_out) and attention weights (..., T, T)."""
        q = x @ self.query  # (..., T, d_in) @ (d_in, d_out)
        k = x @ self.key  # (..., T, d_out)
        v = x @ self.value  # (..., T, d_out)
        scores = q @ k.transpose(-2, -1)  # (..., T, T)
        weights = torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1)
        return weights @ v, weights  # (..., T, d_out), (..., T, T)


def by_parameters() -> SelfAttention:
    """Return a `SelfAttention` from 3 channels to 2; `PARAMETER_SEED` seeds its weights."""
    torch.manual_seed(PARAMETER_SEED)
    return SelfAttention(3, 2)


def explain(page: Page, head: SelfAttention) -> None:
    """Write the lesson's first half on `page`: apply `head` to one of the `WORDS`, then to all."""
    matrices = torch.cat([head.query, head.key, head.value], dim=1)
    q, k, v = X @ head.query, X @ head.key, X @ head.value
    scores = q @ k.T  # (6, 6)
    context, weights = head(X)
    page.section("Six words")
    page.paragraph(f"""Here are numbers small enough for a calculator: six words (the tokens here)
        with vectors of d_in = 3 numbers, and no mask yet. Three matrices of 3 x 2, drawn with seed
        {PARAMETER_SEED}, make queries, keys and values of d_out = d_k = 2 numbers.""")
    page.table("the three matrices", matrices, columns=SIDES)
    page.table(
        "x: a vector for each word, and x @ the matrices: Q, K, V",
        torch.cat([X, q, k, v], dim=1).T,
        ["x0", "x1", "x2", *SIDES],
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
