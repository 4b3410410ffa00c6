"""Multi-head attention: several heads in parallel, their outputs concatenated and projected.

Shapes: B batch, T time, C channels, H heads, `hs` numbers in a query or key, `vs` in a value.
"""

import torch
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.lessons.head import SHOWN_KEYS, Head, attend
from gpt.lessons.lesson_page import Page, names
from gpt.lessons.trained import Trained
from gpt.model.attention import CausalSelfAttention


class ListOfHeads(nn.Module):
    """Naive multi-head attention: H heads computed one by one, concatenated and projected."""

    def __init__(self, heads: list[Head], projection: nn.Linear) -> None:
        super().__init__()
        self.heads, self.projection = nn.ModuleList(heads), projection

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to outputs (B, T, C)."""
        outputs = [head(x)[0] for head in self.heads]  # (B, T, vs) each
        return self.projection(torch.cat(outputs, dim=-1))


class FusedHeads(nn.Module):
    """Multi-head attention that computes queries, keys and values in one matrix product.

    The mask is a buffer for T positions. `weigh` crops it to the t positions of the input.
    """

    future: Tensor

    def __init__(self, C: int, n_head: int, head_size: int, value_size: int, T: int) -> None:
        super().__init__()
        self.n_head = n_head
        queries, values = n_head * head_size, n_head * value_size
        self.sizes = [queries, queries, values]  # channels of q, k, v
        self.qkv = nn.Linear(C, sum(self.sizes), bias=False)
        self.projection = nn.Linear(values, C)
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def split(self, x: Tensor) -> list[Tensor]:
        """Return [queries, keys, values] of x (B, t, C), each of shape (B, H, t, size)."""
        B, t, _ = x.shape
        qkv = self.qkv(x).split(self.sizes, dim=-1)  # (B, t, H * size)
        qkv = [part.view(B, t, self.n_head, -1) for part in qkv]
        return [part.transpose(1, 2) for part in qkv]  # (B, H, t, size)

    def weigh(self, q: Tensor, k: Tensor) -> Tensor:
        """Return causal attention weights (B, H, t, t) of queries and keys, each (B, H, t, hs)."""
        t = q.shape[-2]  # to which the mask is cropped
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(self.future[:t, :t], float("-inf"))
        return torch.softmax(scores, dim=-1)  # (B, H, t, t)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, t, C), for any t up to T, to outputs (B, t, C)."""
        q, k, v = self.split(x)
        y = self.weigh(q, k) @ v  # (B, H, t, vs)
        y = y.transpose(1, 2).flatten(2)  # (B, t, H * vs)
        return self.projection(y)


def take_apart(fused: FusedHeads) -> ListOfHeads:
    """Return a `ListOfHeads` with the weights of `fused`."""
    q_size, _, v_size = (size // fused.n_head for size in fused.sizes)
    heads = [Head(fused.qkv.in_features, q_size, v_size) for _ in range(fused.n_head)]
    layers = [getattr(head, name) for name in ("query", "key", "value") for head in heads]
    parts = torch.split(fused.qkv.weight, [layer.out_features for layer in layers])
    for layer, weight in zip(layers, parts, strict=True):
        layer.weight.data.copy_(weight)
    return ListOfHeads(heads, fused.projection)


def total_variation(weights: Tensor, others: Tensor) -> Tensor:
    """Return the distance between attention weights (..., T): half the sum of |weights - others|.

    It is 0 if the weights are equal, and 1 if no key has a weight above 0 in both.
    """
    return (weights - others).abs().sum(dim=-1) / 2


def example(seed: int, dropout: float = 0.0) -> tuple[Tensor, CausalSelfAttention]:
    """Return random x (B, T, C) = (2, 16, 16), and a `CausalSelfAttention` with 8 heads."""
    torch.manual_seed(seed)
    sizes = {"T": 16, "C": 16, "n_head": 8, "head_size": 32, "value_size": 24}
    form = {"positions": "learned", "qk_norm": False, "dropout": dropout}
    config = ModelConfig.model_validate(sizes | form)
    return torch.randn(2, 16, 16), CausalSelfAttention(config)


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    x, attention = example(seed)
    fused = FusedHeads(16, 8, 32, 24, 16)
    fused.load_state_dict(attention.eval().state_dict())
    apart = take_apart(fused)
    page.section("A list of heads")
    page.paragraph("""One head has one attention pattern at each position. Predicting text needs
        several at once, for example to the last vowel, to the start of the word and to the name of
        the speaker. **Multi-head attention** has many heads, each with its own queries, keys and
        values. Their outputs are concatenated and projected back to the C channels by a matrix
        W_O.""")
    page.formula("multi-head attention", "concat(head_1, ..., head_H) W_O")
    page.formula("head_h", "softmax(Q_h K_h^T / sqrt(d_k)) V_h")
    page.source(ListOfHeads)
    page.section("One matrix product")
    page.paragraph("""A list computes one head after the other. One matrix product can compute all
        their queries, keys and values instead, with the heads as one more dimension. `split` cuts
        the last dimension into parts of the given sizes; `chunk(3)` would cut it into equal ones,
        but here values may be smaller than keys. `@` multiplies the last two dimensions, as always:
        so H comes before t.""")
    page.source(FusedHeads)
    page.paragraph("""Here 8 heads have keys of size 32 and values of size 24, from 16 channels.
        Neither need be C / H, the usual choice and the only one that torch's own layer,
        nn.MultiheadAttention, allows. (The production model is the one that `gpt train`
        trains.)""")
    page.check("a list of 8 heads = one fused product", apart(x), fused(x))
    page.check("one fused product = the production model's attention", fused(x), attention(x))
    _explain_memory(page, fused, x)
    weights = fused.weigh(*fused.split(x[:1, :8])[:2])[0, :, -1]  # (H, T) of the last query
    page.section("How different are heads?")
    page.table(
        "attention weights of the query t=7 in two heads",
        weights[:2],
        ["head 1", "head 2"],
        names("t", 8),
    )
    page.paragraph(f"""The **total variation** of two rows of weights is half the sum of the
        absolute differences: 0 if the rows are equal, 1 if no key has weight in both. Here it is
        {total_variation(weights[0], weights[1]):.4f}: these heads are new. Training makes heads
        differ more.""")
    page.exercise(
        """In FusedHeads.forward, replace `y.transpose(1, 2).flatten(2)` by
        `y.reshape(y.shape[0], y.shape[2], -1)`. The shape stays (B, t, H * vs). Which checks fail?
        """,
        """A row of H * vs numbers is now one head at several positions instead of all heads at
        one. All three checks of the fused product fail. It differs from the list of heads, and it
        is not causal: an early row holds numbers of later positions, so an output changes with an
        input after it.""",
    )


def _explain_memory(page: Page, fused: FusedHeads, x: Tensor) -> None:
    """Explain why concatenating heads copies memory, and why the mask is a buffer."""
    q, k, v = fused.split(x)
    y = fused.weigh(q, k) @ v  # (B, H, t, vs)
    B, _, t, _ = y.shape
    page.paragraph("""`transpose` moves no number: it only changes in which order memory is read.
        `view` needs numbers that lie in memory in the order of the new shape (**contiguous**), as
        they no longer do when heads are joined:""")
    try:
        y.transpose(1, 2).view(B, t, -1)
    except RuntimeError as error:
        page.formula("y.transpose(1, 2).view(B, t, -1)", str(error).partition(" (")[0])
    copied = y.transpose(1, 2).contiguous().view(B, t, -1)
    page.paragraph("""`contiguous()` copies the numbers in order. `flatten` and `reshape` copy if
        they must.""")
    page.check(".contiguous().view(B, t, -1) = .flatten(2)", copied, y.transpose(1, 2).flatten(2))
    page.paragraph("""The **causal mask** is made once, for the longest text that the model takes,
        and cropped to the t characters of the input. It is a **buffer** of the module, which moves
        with the module to another device, and is not trained. It is not `persistent`, so a
        checkpoint does not store it. A prompt may be of any length up to T:""")
    page.check("5 characters alone = the first 5 of 16", fused(x[:, :5]), fused(x)[:, :5])


def explain_trained(page: Page, trained: Trained) -> None:
    """Show how much the heads of layer 1 differ."""
    _, q, k, v = next(trained.heads())
    weights = attend(q, k, v, causal=True)[1][0]  # (H, T, T)
    distances = torch.stack([total_variation(one, weights).mean(-1) for one in weights])  # (H, H)
    page.table(
        "layer 1: total variation of the attention weights of two heads, the mean of all queries",
        distances,
        trained.columns,
        trained.columns,
    )
    pair = torch.tensor(divmod(int(distances.argmax()), len(weights)))
    rows = weights[pair, -1]  # (2, T)
    keys = rows.sum(0).topk(min(SHOWN_KEYS, rows.shape[1])).indices
    page.table(
        "the last query's weights in the two heads that differ most, on the keys with most weight",
        rows[:, keys],
        [trained.columns[head] for head in pair.tolist()],
        trained.names_of(keys),
    )
