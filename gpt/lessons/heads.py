"""Multi-head attention: several heads in parallel, their outputs concatenated and projected.

Shapes: B batch, T time, C channels, H heads, hs head_size, vs value_size; H * hs need not be C.
Which keys a query may attend to is decided by the mask: masks.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.lessons import masks
from gpt.lessons.head import Head
from gpt.lessons.lesson_page import Page
from gpt.lessons.scaling import entropy, max_entropy
from gpt.lessons.trained import Trained
from gpt.model.attention import CausalSelfAttention
from gpt.model.rotary import offset_keys


class ListOfHeads(nn.Module):
    """The naive form: H heads one after the other, concatenated, projected back to C."""

    def __init__(self, heads: list[Head], projection: nn.Linear) -> None:
        super().__init__()
        self.heads, self.projection = nn.ModuleList(heads), projection

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        outputs = [head(x)[0] for head in self.heads]  # (B, T, vs) each
        out: Tensor = self.projection(torch.cat(outputs, dim=-1))
        return out


class FusedHeads(nn.Module):
    """The better form: the queries, keys and values of all heads from one matrix product.

    The mask is a buffer, made once for T positions and cropped to the t of the input.
    """

    future: Tensor

    def __init__(self, C: int, n_head: int, head_size: int, value_size: int, T: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.sizes = [n_head * head_size, n_head * head_size, n_head * value_size]
        self.qkv = nn.Linear(C, sum(self.sizes), bias=False)
        self.projection = nn.Linear(n_head * value_size, C)
        future = torch.ones(T, T, dtype=torch.bool).triu(1)  # True where masked
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, t, C) -> (B, t, C), for any t up to T."""
        q, k, v = self.split(x)
        return self.join(self.weigh(q, k) @ v)

    def split(self, x: Tensor) -> list[Tensor]:
        """(B, t, C) -> queries and keys (B, H, t, hs), values (B, H, t, vs)."""
        B, t, _ = x.shape
        qkv = self.qkv(x).split(self.sizes, dim=-1)  # (B, t, H * size) each
        parts = [part.view(B, t, self.n_head, -1) for part in qkv]
        return [part.transpose(1, 2) for part in parts]  # (B, H, t, size)

    def weigh(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, t, hs) twice -> attention weights (B, H, t, t)."""
        t = q.shape[-2]
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (B, H, t, t)
        scores = scores.masked_fill(self.future[:t, :t], float("-inf"))
        return torch.softmax(scores, dim=-1)

    def join(self, y: Tensor) -> Tensor:
        """(B, H, t, vs) -> (B, t, C): the heads side by side, projected back."""
        side_by_side = y.transpose(1, 2).flatten(2)  # (B, t, H * vs)
        out: Tensor = self.projection(side_by_side)
        return out


class ProductionHead(Head):
    """A head with the additions of the lesson `recipe` that a production attention uses."""

    def __init__(self, attention: CausalSelfAttention) -> None:
        C, H = attention.qkv.in_features, attention.n_head
        q_size, _, v_size = (size // H for size in attention.sizes)
        super().__init__(C, q_size, v_size, bias=attention.qkv.bias is not None)
        self.qk_norm, self.key_offset = attention.qk_norm, attention.key_offset
        self.rotary, self.attention_scale = attention.rotary, attention.scale * q_size**0.5

    def adjust(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise, rotate, offset and scale queries and keys, if the attention does so."""
        if self.qk_norm:
            q, k = F.layer_norm(q, q.shape[-1:]), F.layer_norm(k, k.shape[-1:])
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        if self.key_offset:
            k = offset_keys(k)
        return self.attention_scale * q, k


def take_apart(attention: CausalSelfAttention) -> ListOfHeads:
    """Return the heads of a production attention one by one, with its weights."""
    heads: list[Head] = [ProductionHead(attention) for _ in range(attention.n_head)]
    parts = [getattr(head, name) for name in ("query", "key", "value") for head in heads]
    sizes = [part.out_features for part in parts]
    for name, tensor in attention.qkv.named_parameters():  # the weight, and the bias if it has one
        for part, rows in zip(parts, torch.split(tensor, sizes), strict=True):
            part.get_parameter(name).data.copy_(rows)
    return ListOfHeads(heads, attention.projection)


def copy_weights(attention: CausalSelfAttention, fused: FusedHeads) -> None:
    """Copy the weights of a production attention to `fused`."""
    fused.qkv.load_state_dict(attention.qkv.state_dict())
    fused.projection.load_state_dict(attention.projection.state_dict())


def as_torchs(fused: FusedHeads) -> nn.MultiheadAttention:
    """Return torch's layer with copies of the weights; it requires hs = vs = C / H."""
    theirs = nn.MultiheadAttention(fused.projection.out_features, fused.n_head, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": fused.qkv.weight,
            "in_proj_bias": torch.zeros(len(fused.qkv.weight)),
            "out_proj.weight": fused.projection.weight,
            "out_proj.bias": fused.projection.bias,
        }
    )
    return theirs


def example(seed: int, **settings: float) -> tuple[Tensor, CausalSelfAttention]:
    """Draw noise (2, 16, 16), and 8 heads of size 32, 256 channels from 16, as in the notebook."""
    torch.manual_seed(seed)
    sizes = {"T": 16, "C": 16, "n_head": 8, "head_size": 32, "value_size": 24}
    form = {"positions": "learned", "qk_norm": False}
    config = ModelConfig.model_validate(sizes | form | settings)
    return torch.randn(2, 16, 16), CausalSelfAttention(config)


def explain(page: Page, seed: int) -> None:
    """Write the page."""
    x, attention = example(seed)
    fused = FusedHeads(16, 8, 32, 24, 16)
    copy_weights(attention.eval(), fused)
    apart = take_apart(attention)
    page.paragraph("""One head has one attention pattern at each position. Predicting text needs
        several at once: the vowel before, the start of the word, the speaker. **Multi-head
        attention** has many heads, each with its own queries, keys and values. Their outputs are
        concatenated and projected back to the C channels.""")
    page.formula("multi-head attention", "concat(head_1, ..., head_H) W_O")
    page.formula("head_h", "softmax(Q_h K_h^T / sqrt(d_k)) V_h")
    page.source(ListOfHeads.forward)
    page.paragraph("""A list computes one head after the other. One matrix product can compute all
        their queries, keys and values instead, with the heads as one more dimension:""")
    page.source(FusedHeads.__init__, FusedHeads.split, FusedHeads.weigh, FusedHeads.join)
    page.paragraph("""Here 8 heads have keys of size 32 and values of size 24, from 16 channels.
        Neither need be C / H, the usual choice and the only one that torch's own layer allows.""")
    page.check("a list of 8 heads = one fused product", apart(x), fused(x))
    page.check("one fused product = the production model's attention", fused(x), attention(x))
    usual = FusedHeads(16, 8, 2, 2, 16)
    theirs, _ = as_torchs(usual)(x, x, x, attn_mask=usual.future)
    page.check("with 8 heads of size 2, also torch's nn.MultiheadAttention", usual(x), theirs)
    page.paragraph("""Even untrained, the heads attend differently. The table shows the entropy of
        their weights. A query with n keys has at most log2(n) bits, and `maximum` is the mean of
        log2(n) over n = 1 to 16.""")
    page.table(
        "entropy of each head's attention weights (bits), averaged over query positions",
        _entropies(attention.explicit(x)[1]),
        columns=[*(f"head {head + 1}" for head in range(8)), "maximum"],
    )
    masks.explain_masks(page, fused, x)

    def mixed(x: Tensor) -> Tensor:
        """Compute the fused heads with the exercise's mistake."""
        q, k, v = fused.split(x)
        out: Tensor = fused.projection((fused.weigh(q, k) @ v).reshape(*x.shape[:2], -1))
        return out

    difference = (mixed(x) - apart(x)).abs().max()
    leak = masks.influence(mixed, x[:, :6]).triu(1).max()  # as the check "nor in the 8 heads"
    page.exercise(
        """In FusedHeads.join, replace `y.transpose(1, 2).flatten(2)` by
        `y.reshape(y.shape[0], y.shape[2], -1)`. The shape stays (B, t, H * vs). Which checks fail?
        """,
        f"""A row of H * vs numbers is now one head at several positions instead of all heads at
        one. All five checks of the fused product fail. It differs from the list of heads by
        {difference:.4f}, and it is not causal: an early row holds numbers of later positions, and
        an output changes by up to {leak:.4f} with an input after it.""",
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """Show the entropy of each head, and that the model is causal."""
    attentions = [block.attention for block in trained.blocks]
    changed = trained.ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % len(trained.vocabulary)
    before, after = trained.model(trained.ids), trained.model(changed)
    after[:, -1] = before[:, -1]  # these logits may change
    pairs = zip(attentions, trained.inputs, strict=True)
    page.table(
        "entropy of each head's attention weights (bits)",
        torch.stack([_entropies(attention.explicit(x)[1]) for attention, x in pairs]),
        trained.layers,
        [*trained.columns, "maximum"],
    )
    page.paragraph("""A head near 0 bits attends to one character; with many bits it averages over
        many.""")
    last, x = attentions[-1], trained.inputs[-1]
    page.check(
        "a list of its heads = the production model's attention", take_apart(last)(x), last(x)
    )
    page.check("causality: with another last character, all logits before it", after, before)


def _entropies(weights: Tensor) -> Tensor:
    """(B, H, T, T) -> (H + 1,) bits: each head's mean entropy, and the mean of the maxima."""
    maximum = torch.tensor([max_entropy(weights.shape[-1])])
    return torch.cat([entropy(weights).mean((0, 2)), maximum])
