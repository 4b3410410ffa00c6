"""One head of attention: queries, keys and values.

B batch, T time, d_in input channels, hs head_size, vs value_size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons import six_words
from gpt.lessons.averaging import causal_softmax
from gpt.lessons.page import Page
from gpt.lessons.trained import Trained
from gpt.model.key_offset import offset_keys
from gpt.model.rotary import Rotary
from gpt.text.display import symbol


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """q (..., T, hs), k (..., S, hs), v (..., S, vs) -> out (..., T, vs), weights (..., T, S)."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (..., T, S)
    weights = causal_softmax(scores) if causal else scores.softmax(dim=-1)
    return weights @ v, weights


class Head(nn.Module):
    """The better form: linear layers, which draw their weights on a sensible scale.

    Causal, it is a decoder's head; not causal, an encoder's. With a `context` it is
    cross-attention: queries from one text, keys and values from another.
    """

    def __init__(
        self,
        d_in: int,
        head_size: int,
        value_size: int | None = None,
        *,
        bias: bool = False,
        causal: bool = True,
        qk_norm: bool = False,
        attention_scale: float = 1.0,
        rotary: Rotary | None = None,
        key_offset: bool = False,
    ) -> None:
        super().__init__()
        self.query = nn.Linear(d_in, head_size, bias=bias)
        self.key = nn.Linear(d_in, head_size, bias=bias)
        self.value = nn.Linear(d_in, value_size or head_size, bias=bias)
        self.causal, self.rotary, self.key_offset = causal, rotary, key_offset
        self.qk_norm, self.attention_scale = qk_norm, attention_scale

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_in), context (B, S, d_in) -> output (B, T, vs) and weights (B, T, S)."""
        context = x if context is None else context
        q, k, v = self.query(x), self.key(context), self.value(context)
        q, k = self.adjust(q, k)  # nothing, in a plain head
        return attend(q, k, v, causal=self.causal)

    def adjust(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys as the lesson `recipe` has them, where that is asked for."""
        if self.qk_norm:  # mean 0 and variance 1: no score can grow without bound
            q, k = F.layer_norm(q, q.shape[-1:]), F.layer_norm(k, k.shape[-1:])
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        if self.key_offset:
            k = offset_keys(k)
        return self.attention_scale * q, k


def example(seed: int) -> tuple[Tensor, Head]:
    """Noise (B, T, C) = (4, 8, 32), and a head of size 16."""
    torch.manual_seed(seed)
    return torch.randn(4, 8, 32), Head(32, 16)


def by_layers() -> Head:
    """The head of the six words as linear layers, with the weights of its own seed."""
    torch.manual_seed(six_words.LINEAR_SEED)
    return Head(3, 2, causal=False)


def copy_matrices(source: six_words.ParameterHead, head: Head) -> Head:
    """The head with the matrices of the other form; `nn.Linear` holds them transposed."""
    for name in ("query", "key", "value"):
        getattr(head, name).weight.data.copy_(getattr(source, name).T)
    return head


def draw_edges(weights: Tensor) -> list[str]:
    """(t + 1,) weights -> the edges into position t; those above the average are drawn thick."""
    t = len(weights) - 1
    edges = "".join(f"{'#' if weight > 1 / (t + 1) else '|':^10}" for weight in weights)
    return [
        "".join(f"{f't={s}':^10}" for s in range(t + 2)).rstrip(),
        edges.rstrip(),
        "".join(f"{weight:^10.4f}" for weight in weights) + " no edge: the future",
        edges.rstrip(),
        f"    {'+---------' * t}+-----> output at t={t}",
    ]


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    page.paragraph(
        """Averaging weighs all of the past equally. In a **head** of attention each position
        computes a **query** (what it looks for), a **key** (what it contains) and a **value** (what
        it passes on). The **score** of a query and a key is their dot product: large where they
        match. Softmax makes **attention weights** of a query's scores, and its output is the sum of
        the values, each times its weight. With the queries, keys and values as rows of Q, K and V,
        and d_k numbers in a key:"""
    )
    page.formula("scaled dot-product attention", "softmax(Q K^T / sqrt(d_k)) V")
    page.source(attend)
    page.paragraph("Why the scores are divided by sqrt(d_k) is the next lesson.")
    by_hand = six_words.by_parameters()
    six_words.explain(page, by_hand)
    _explain_linear_layers(page, by_hand)
    _explain_causal(page, seed)
    if trained is not None:
        _explain_trained(page, seed, trained)
    row = by_hand(six_words.X)[1][1]
    q, k = six_words.X @ by_hand.query, six_words.X @ by_hand.key
    unscaled = (q[1] @ k.T).softmax(-1)
    page.exercise(
        f"""In `ParameterHead.forward` (six_words.py) delete `/ k.shape[-1] ** 0.5`. The weight of
        'journey' on itself was {row[1]:.4f}, and on 'one' {row[4]:.4f}. Which grows, which shrinks,
        and which check fails?""",
        f"""The largest grow and the smallest shrink, since softmax sees larger differences:
        {unscaled[1]:.4f} on itself, {unscaled[4]:.4f} on 'one'. "These lines = torch's
        scaled_dot_product_attention" fails, and so do the comparisons with linear layers.""",
    )


def _explain_linear_layers(page: Page, by_hand: six_words.ParameterHead) -> None:
    linear, biased = by_layers(), Head(3, 2, bias=True, causal=False)
    X = six_words.X
    page.paragraph(
        f"""Usually the three matrices are linear layers, `nn.Linear(d_in, d_out, bias=False)`; with
        seed {six_words.LINEAR_SEED} their context vectors are others, because the weights begin
        otherwise: `torch.rand` draws from 0 to 1, `nn.Linear` from -1/sqrt(d_in) to 1/sqrt(d_in),
        here .5774, both signs, so that outputs are no larger than inputs however many inputs there
        are. It also stores the matrix transposed, (d_out, d_in). With the first form's weights
        copied, transposed, the two agree. (`context`, a second text, is for cross-attention in the
        lesson `heads`, and `adjust` for the lesson `recipe`; without them they change nothing.)"""
    )
    page.source(Head.forward)
    page.table("context vectors of the linear layers", linear(X)[0], six_words.WORDS)
    copied = copy_matrices(by_hand, by_layers())
    page.check_differ("matrices drawn with 0 to 1, or by nn.Linear", by_hand(X)[0], linear(X)[0])
    page.check("with copied weights: three matrices = linear layers", by_hand(X)[0], copied(X)[0])
    folded = six_words.ParameterHead(4, 2)
    for name in ("query", "key", "value"):
        layer = getattr(biased, name)
        getattr(folded, name).copy_(torch.cat([layer.weight, layer.bias.unsqueeze(1)], dim=1).T)
    ones = torch.ones(len(X), 1)
    page.paragraph(
        """With a **bias** each query, key and value has a constant added, as if x had one more
        channel that is always 1. GPT-2 has it; most models since do without. And here d_out is not
        d_in. In a GPT with one head both are C, so that x and the output can be added; with many,
        each makes C / n_head channels, and side by side they are C again."""
    )
    page.check(
        "a bias = a channel that is always 1", biased(X)[0], folded(torch.cat([X, ones], 1))[0]
    )
    sizes = [(3, 2, False), (3, 2, True), (3, 3, False)]
    heads = [Head(d_in, d_out, bias=bias, causal=False) for d_in, d_out, bias in sizes]
    counts = [[sum(p.numel() for p in head.parameters()), *head(X)[0].shape] for head in heads]
    page.table(
        "the head's numbers, and the shape of its output",
        torch.tensor(counts),
        ["d_in 3, d_out 2", "the same with a bias", "d_in 3, d_out 3"],
        ["parameters", "words", "channels"],
    )


def _explain_causal(page: Page, seed: int) -> None:
    x, head = example(seed)
    B, T, C = x.shape
    positions = [f"t={t}" for t in range(T)]
    past = torch.ones(T, T).tril() == 1
    output, weights = head(x)
    v = head.value(x)
    scores = head.query(x) @ head.key(x).transpose(-2, -1) * 16**-0.5
    page.paragraph(
        f"""A model that predicts the next token must not see it: with the causal mask of the lesson
        `averaging` the head is that of a **decoder**, a model that generates text. Here it is on a
        batch of B = {B} sequences of T = {T} tokens, C = {C} channels of noise, head_size 16:"""
    )
    page.table(
        "first sequence: the masked scores, before softmax",
        scores[0].masked_fill(~past, float("-inf")),
        positions,
        positions,
    )
    page.table("the attention weights", weights[0], positions, positions, ~past)
    page.check("each row sums to 1", weights.sum(-1), torch.ones(B, T))
    page.check("nothing from the future", weights.triu(1), torch.zeros_like(weights))
    page.paragraph(
        f"""What is averaged? Before there are values, x itself: weights @ x, with all its {C}
        channels. The value layer chooses what of them to pass on, in 16. It is linear: of the
        average or before averaging, it gives the same."""
    )
    ends = torch.stack([(weights @ x)[0, -1, :6], output[0, -1, :6]])
    page.table("output at t=7, its first 6 channels", ends, ["weights @ x", "weights @ V"])
    page.check("weights @ V = the values of weights @ x", output, head.value(weights @ x))
    uniform = Head(32, 16)
    uniform.load_state_dict(head.state_dict())
    uniform.query.weight.zero_()
    mean = causal_softmax(torch.zeros(T, T)) @ v
    page.check("queries of zero = the average of the values so far", uniform(x)[0], mean)
    page.paragraph(
        """Attention is a **directed graph**: an edge from each position to itself and to each after
        it, along which its value flows. Which edges there are is fixed, by the mask; their weights
        depend on the data. The edges into t=3 in two sequences, # where a weight is above the
        average:"""
    )
    for b in range(2):
        page.drawing(f"sequence {b} of the batch", draw_edges(weights[b, 3, :4]))
    changed = x.clone()
    changed[1] = -x[1]
    page.paragraph("No edge leads from one sequence of a batch to another: they never mix.")
    page.check("sequence 0, whatever sequence 1 is", output[0], head(changed)[0][0])
    page.check("each alone = all at once", output, torch.cat([head(one[None])[0] for one in x]))


def _explain_trained(page: Page, seed: int, trained: Trained) -> None:
    attention, q, k, v = next(trained.heads())
    _, weights = attend(q, k, v, causal=True)
    T = len(trained.characters)
    largest = weights[0, 0, -1].topk(min(8, T))
    names = [f"t={t} {symbol(trained.characters[t])}" for t in largest.indices.tolist()]
    others = 1 - largest.values.sum(dim=0, keepdim=True)  # of those not shown
    trained.introduce(page)
    page.table(
        f"layer 1, head 1: the largest attention weights of the last query, t={T - 1} "
        f"{symbol(trained.characters[-1])}, and the sum of the others",
        torch.cat([largest.values, others]).unsqueeze(1),
        [*names, f"{T - len(names)} others"],
    )
    page.check(
        "this lesson's head = the production model's",
        weights,
        attention.explicit(trained.inputs[0])[1],
    )
    _explain_embeddings(page, seed, trained)


def _explain_embeddings(page: Page, seed: int, trained: Trained) -> None:
    characters = trained.vocabulary.names[:256]  # all pairs of them are compared
    if len(characters) < 2:
        return
    table = trained.model.token_embedding.weight[: len(characters)]
    noise = torch.randn(table.shape, generator=torch.Generator().manual_seed(seed))
    page.paragraph(
        """The vectors of noise above are fixed. A model's embeddings are trained with the rest, and
        characters that are used alike come to point the same way; of fixed random vectors some do
        by chance, whatever their characters are. The pairs with the largest cosine, the dot product
        of two vectors over their lengths:"""
    )
    first, second = torch.triu_indices(len(characters), len(characters), offset=1)
    for caption, vectors in (("trained embedding", table), ("fixed random vectors", noise)):
        unit = F.normalize(vectors, dim=-1)
        cosines = (unit @ unit.T)[first, second]
        largest = cosines.topk(min(8, len(cosines)))
        page.table(
            caption,
            largest.values,
            columns=[
                f"{symbol(characters[first[i]])} {symbol(characters[second[i]])}"
                for i in largest.indices
            ],
        )
