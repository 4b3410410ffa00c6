"""One head of attention, computed for six words: the first half of the lesson `head`.

The words, their vectors, the random seeds and all numbers are those of Raschka, "Build a Large
Language Model (From Scratch)", chapter 3.
"""

import torch
from torch import Tensor, nn

from gpt.lessons.lesson_page import Page

WORDS = ["Your", "journey", "starts", "with", "one", "step"]
SIDES = ["query", "query", "key", "key", "value", "value"]  # columns of the three matrices
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


class ParameterHead(nn.Module):
    """Naive head of attention: three parameter matrices, without bias or mask."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.rand(d_in, d_out))
        self.key = nn.Parameter(torch.rand(d_in, d_out))
        self.value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (..., T, d_in) to outputs (..., T, d_out) and attention weights (..., T, T)."""
        q, k, v = x @ self.query, x @ self.key, x @ self.value
        scores = q @ k.transpose(-2, -1)
        weights = torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1)
        return weights @ v, weights


def by_parameters() -> ParameterHead:
    """Return a `ParameterHead` from 3 channels to 2; `PARAMETER_SEED` seeds its weights."""
    torch.manual_seed(PARAMETER_SEED)
    return ParameterHead(3, 2)


def explain(page: Page, head: ParameterHead) -> None:
    """Write the lesson's first half on `page`: apply `head` to one of the `WORDS`, then to all."""
    matrices = torch.cat([head.query, head.key, head.value], dim=1)
    q, k, v = X @ head.query, X @ head.key, X @ head.value
    scores = q @ k.T  # (6, 6)
    context, weights = head(X)
    page.paragraph(f"""Here are numbers small enough for a calculator: six words with vectors of 3
        numbers, and no mask yet. (A token here is a word.) Three matrices of 3 x 2, drawn with seed
        {PARAMETER_SEED}, make queries, keys and values of 2 numbers: d_in = 3, d_out = d_k = 2.""")
    page.table("x: a vector for each word", X, WORDS)
    page.table("the three matrices", matrices, columns=SIDES)
    page.table("x @ the matrices: Q, K, V", torch.cat([q, k, v], dim=1), WORDS, SIDES)
    page.paragraph("""Take the second word, 'journey'. Its score for each word is the
        query of 'journey' times the key of that word. The scores are divided by sqrt(2), and
        softmax turns them into weights. The sum of all values, each times its weight, is the
        **context vector** of 'journey'.""")
    page.table(
        "the query of 'journey' (row 2 of Q) and each word's key",
        {"score": scores[1], "/ sqrt(2)": scores[1] / 2**0.5, "weight": weights[1]},
        columns=WORDS,
    )
    page.table("the context vector of 'journey'", context[1])
    page.paragraph("With matrices, the same computation gives all six context vectors at once:")
    page.source(ParameterHead)
    page.table("scores Q K^T: query (row), key (column)", scores, WORDS, WORDS)
    page.table("attention weights: softmax(Q K^T / sqrt(d_k))", weights, WORDS, WORDS)
    page.table("context vectors: weights @ V", context, WORDS)
    fused = nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    page.check("these lines = torch's scaled_dot_product_attention", context, fused)
    page.paragraph("""Why `nn.Module` and `nn.Parameter`? A matrix that is an `nn.Parameter` has
        `requires_grad`, so `backward()` stores the gradient of a loss in its `.grad`. The module
        lists its parameters in `parameters()`, which is passed to an optimizer, and in
        `state_dict()`, which a checkpoint stores. Here x is a plain tensor: it is fixed, is in
        neither list and gets no gradient. In a model x is trained, too: each vector is a row of an
        **embedding** table, which is one more parameter.""")
