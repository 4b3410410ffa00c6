"""The recipe: what this project adds to the textbook GPT, and how much each addition helps.

Every val loss is from scripts/experiments.md. Shapes: B batch, T time, C channels, `hs` head size,
V vocabulary size.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.config.load import load_config
from gpt.config.schema import ModelConfig
from gpt.lessons.averaging import causal_softmax
from gpt.lessons.block import gelu
from gpt.lessons.lesson_page import Page
from gpt.lessons.scaling import entropy, max_entropy, scaled_scores
from gpt.lessons.textbook import draw_zeros
from gpt.lessons.trained import Trained
from gpt.model.rotary import Rotary, offset_keys
from gpt.model.transformer import GPT, cross_entropy
from gpt.text.display import symbol
from gpt.training.optimizer import orthogonalise

LOSS_WITH_ALL = 1.863  # mean val loss of 3 seeds of the config shakespeare_fast
LEAVE_ONE_OUT = {  # mean val loss of 3 seeds without a part (in brackets: its replacement)
    "rotary positions (learned)": 1.938,
    "QK norm and its scale 1.5": 1.858,
    "n-gram embeddings": 2.018,
    "squared ReLU (GELU)": 1.870,
    "initialisation (GPT-2's)": 1.904,
    "Muon (AdamW, its best rate)": 2.021,
    "short windows first": 1.867,
    "all but the initialisation": 2.519,
}
FACTORS = (1, 10, 100)  # factors by which queries are multiplied


def rotate(x: Tensor) -> Tensor:
    """Rotate x (..., T, hs) by position (RoFormer, arXiv:2104.09864, section 3.2.2).

    Channels c and c + hs/2 are the real and imaginary part of a complex number. At position t, this
    number is rotated by t * 10000^(-2c/hs) radians.
    """
    T, half = x.shape[-2], x.shape[-1] // 2
    c = torch.arange(half, dtype=torch.float64)
    angles = torch.arange(T)[:, None] * 10000 ** -(c / half)
    angles = angles.float()  # (T, hs / 2)
    rotation = torch.polar(torch.ones_like(angles), angles)
    rotated = torch.complex(*x.chunk(2, dim=-1)) * rotation
    return torch.cat([rotated.real, rotated.imag], dim=-1)


def normalised_scores(q: Tensor, k: Tensor) -> Tensor:
    """Normalise queries and keys (..., T, hs) to mean 0, variance 1; return scores (..., T, T).

    Each |score| is at most sqrt(hs).
    """
    q = F.layer_norm(q, q.shape[-1:])  # of norm sqrt(hs)
    k = F.layer_norm(k, k.shape[-1:])
    return scaled_scores(q, k)


def offset_by_one(k: Tensor) -> Tensor:
    """Shift half of the channels of keys k (..., T, hs) one position later, and pad with zeros."""
    hs = k.shape[-1]
    # the pairs that rotary positions rotate least
    half = [i for i in range(hs) if i % (hs // 2) >= hs // 4]
    offset = k.clone()
    offset[..., 1:, half] = k[..., :-1, half]
    offset[..., 0, half] = 0
    return offset


def ngram_embedding(ids: Tensor, tables: list[Tensor]) -> Tensor:
    """Embed ids (B, T) as x (B, T, C): x[:, t] is the sum of tables[d][ids[:, t - d]] over d."""
    x = tables[0][ids]  # (B, T, C)
    for distance, table in enumerate(tables[1:], start=1):
        x[:, distance:] += table[ids[:, :-distance]]
    return x


def by_svd(gradient: Tensor) -> Tensor:
    """Return the matrix `gradient` with all its singular values replaced by 1."""
    U, _, Vt = torch.linalg.svd(gradient, full_matrices=False)
    return torch.matmul(U, Vt)


def embedding_tables(model: GPT) -> list[Tensor]:
    """Return tables (V, C) that embed the character itself, the character before, and so on."""
    weights: dict[str, Tensor] = model.state_dict()
    keys = ["token_embedding", *(f"ngram_embeddings.{i}" for i in range(model.config.ngram - 1))]
    return [weights[f"{key}.weight"] for key in keys]


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    torch.manual_seed(seed)
    ids, model = torch.randint(11, (2, 8)), GPT(load_config("quickstart").model, 11).eval()
    q, k = torch.randn(2, 1, 8, 16, generator=torch.Generator().manual_seed(seed))
    page.paragraph("""The textbook GPT, config `classic`, learns slowly. This project's other
        configs add the ten parts below. Parts 7, 8 and 10 are off by default: `gpt train my.txt`
        sets 8, and sets 7 and 10 if they help.""")
    _explain_attention(page, q, k)
    _explain_layers(page, ids, model)
    _explain_muon(page, ids, model)
    page.paragraph("""7. **Token dropout** (word dropout, arXiv:1511.06349;
        model.character_dropout). In each step, some input characters are dropped at random, so that
        the model does not rely on any single one. A dropped character adds no row to any embedding.
        This reduces overfitting.""")
    page.paragraph("""8. **Short windows first** (sequence length warmup, arXiv:2108.06084;
        train.first_window). Most of what there is to learn needs little context, and attention
        costs less in short windows. So the first steps have short windows, and more of them.""")
    page.paragraph("""9. **Epochs**. Each pass over the text takes windows that do not overlap, in a
        new random order.""")
    _explain_key_offset(page, k)
    page.paragraph("""What does each part bring? The table shows the val loss (nats per character)
        on tinyshakespeare of the config shakespeare_fast, 140 steps of 1,024 characters, with one
        part ablated: means of three seeds. Such a short run shows only what helps early: QK norm
        does not, squared ReLU and short windows hardly do (scripts/experiments.md).""")
    page.table(
        f"val loss without each part (in brackets: instead); with all parts {LOSS_WITH_ALL:.3f}",
        {part: [loss, loss - LOSS_WITH_ALL] for part, loss in LEAVE_ONE_OUT.items()},
        columns=["without", "it brings"],
    )
    scores = [scaled_scores(n * q, F.layer_norm(k, k.shape[-1:])) for n in FACTORS]
    largest = ", ".join(f"{s.abs().max():.4f}" for s in scores)
    bits = [entropy(causal_softmax(s)).mean() for s in scores]
    page.exercise(
        """In normalised_scores delete the line that normalises q. Which scores does the table's
        row 'with QK norm' then show, and how do the attention weights change?""",
        f"""{largest}: they grow with the queries, and nothing bounds them. The attention weights
        become sharp: their mean entropy falls from {bits[0]:.2f} to {bits[1]:.2f} and {bits[2]:.2f}
        of at most {max_entropy(8):.2f} bits, and with it the gradient (lesson `scaling`).""",
    )


def _explain_attention(page: Page, q: Tensor, k: Tensor) -> None:
    """Explain rotary positions and QK norm."""
    page.paragraph("""1. **Rotary positions** (RoPE; arXiv:2104.09864, section 3.2.2;
        model.positions). Each pair of channels of a query or key is rotated by an angle
        proportional to the position. The dot product of a given query and key then depends only on
        their offset: how far apart they are, and which comes first.""")
    page.source(rotate)
    one, other = torch.randn(2, 1, 1, 6).expand(2, 1, 4, 6)  # a query and a key at 4 positions
    scores = (rotate(one) @ rotate(other).transpose(-2, -1))[0]  # (T, T)
    page.by_position("scores of one query with one key, at every pair of positions", scores)
    page.check("equal scores at equal offsets", scores[1:, 1:], scores[:-1, :-1])
    page.check_differ("the scores at offsets -1 and 1", scores[0, 1], scores[1, 0])
    rotary = Rotary(ModelConfig(T=8, C=6, n_head=1))
    page.check("these lines = the production model's rotary positions", rotate(one), rotary(one))
    page.paragraph("""2. **QK norm** (arXiv:2302.05442, section 2; model.qk_norm). Queries and keys
        are normalised to mean 0 and variance 1. Their length is then sqrt(hs), and no score exceeds
        attention_scale * sqrt(hs). One-hot attention has made larger models diverge; with QK norm,
        growing weights cannot cause it. With attention_scale 1.5 attention can be sharper.""")
    page.source(normalised_scores)
    page.table(
        "the largest |score| of 8 queries and keys, hs 16; at most 4 with QK norm",
        {
            "without": [scaled_scores(n * q, k).abs().max() for n in FACTORS],
            "with QK norm": [normalised_scores(n * q, k).abs().max() for n in FACTORS],
        },
        columns=["queries", "10 x", "100 x"],
    )


def _explain_layers(page: Page, ids: Tensor, model: GPT) -> None:
    """Explain n-gram embeddings, squared ReLU and the initialisation."""
    page.paragraph("""3. **n-gram embeddings** (model.ngram). The embedding of a position is the sum
        of a row for its own character and a row for each of the characters just before it. Each
        distance has its own table. (Bengio et al. 2003, JMLR 3, section 2.)""")
    page.source(ngram_embedding)
    embedded = ngram_embedding(ids, embedding_tables(model))
    page.check("these lines = the production model's embedding", embedded, model.embed(ids))
    page.paragraph("""4. **Squared ReLU** (Primer, arXiv:2109.08668; model.activation) in the MLP is
        max(x, 0)^2: no exponential to compute, and exactly zero for all negative numbers.""")
    x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])
    page.table("activations", {"x": x, "GELU": gelu(x), "squared ReLU": x.clamp(min=0) ** 2})
    page.paragraph("""5. **Zero initialisation** (as arXiv:1706.02677, section 5.1, does with
        residual blocks). What a block adds to the residual stream begins at zero, and so does the
        head: all characters are equally likely, and training decides how much each part adds.
        Embeddings and the other layers are drawn so that their outputs have variance 1/2.""")
    first = model.blocks[0](embedded)
    page.check("a new model's first block: its output = its input", first, embedded)
    loss = cross_entropy(model(ids)[:, :-1], ids[:, 1:])
    page.check("a new model's loss = ln V", loss, torch.tensor(math.log(11)))


def _explain_muon(page: Page, ids: Tensor, model: GPT) -> None:
    page.paragraph("""6. **Muon** (Jordan et al. 2024, kellerjordan.github.io/posts/muon;
        train.optimizer) trains the matrices in blocks, AdamW the rest. A gradient's few large
        directions would drown the others. Muon makes all directions equally long: if the gradient's
        running mean is U S V^T, the step is U V^T, computed by polynomials (Polar Express,
        arXiv:2505.16932). Then the steps of all neurons are scaled to a similar size (NorMuon,
        arXiv:2510.05491).""")
    page.source(by_svd)
    draw_zeros(model)  # else the gradient is zero
    with torch.enable_grad():
        loss = cross_entropy(model(ids)[:, :-1], ids[:, 1:])
        (gradient,) = torch.autograd.grad(loss, model.get_parameter("blocks.0.mlp.expand.weight"))
    orthogonal = orthogonalise(gradient[None])[0]
    u, values, vh = torch.linalg.svd(gradient, full_matrices=False)
    rows = [values / values[0], torch.linalg.svdvals(orthogonal)]
    page.table(
        "singular values of the first MLP's gradient, and made equal",
        torch.stack(rows)[:, [0, 1, 3, 7, 11]],
        ["gradient / largest", "Muon"],
        ["largest", "2nd", "4th", "8th", "12th"],
    )
    turned = u.T @ orthogonal @ vh.T
    claim = "the directions are kept: U^T (Muon's) V = its diagonal"
    page.check(claim, turned, turned.diag().diag())


def _explain_key_offset(page: Page, noise: Tensor) -> None:
    page.paragraph("""10. **Partial key offset** (modded-nanogpt, pull request 169;
        model.key_offset). The character that followed 'Rom' the last time is likely to follow
        again. A head that looks it up is called an **induction head** (arXiv:2209.11895). In the
        textbook GPT it needs two layers: the first adds to each position which character precedes
        it, and a query of the second matches that. If half of each key's channels are offset by one
        character, one layer learns it early. On Python's own source code, the offset lowered the
        val loss of two layers from 1.22 to 1.05; on prose it changes nothing.""")
    page.source(offset_by_one)
    text, hs = "rome rom", 24
    k = torch.zeros(len(text), hs)
    for t, letter in enumerate(text):  # one-hot, in channels that are offset
        k[t, hs // 4 + " emor".index(letter)] = 1
    page.table(
        "attention weights of the last query, which looks for its own character, 'm'",
        torch.cat([scaled_scores(8 * k[-1:], keys).softmax(-1) for keys in (k, offset_by_one(k))]),
        ["plain keys", "offset keys"],
        [f"t={t} {symbol(letter)}" for t, letter in enumerate(text)],
    )
    page.check(
        "these lines = the production model's keys", offset_by_one(noise), offset_keys(noise)
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """Show the mean norm of each n-gram embedding, and the largest |score| of each layer."""
    model, config = trained.model, trained.model.config
    page.table(
        "mean norm of the embeddings of a position's own character and of those before it",
        [t[trained.ids[0]].norm(dim=-1).mean() for t in embedding_tables(model)],
        columns=["its own", *(f"{i} before" for i in range(1, config.ngram))],
    )
    bound = config.attention_scale * config.head_size**0.5
    limit = f"at most {bound:.4f}" if config.qk_norm else "no QK norm"
    page.table(
        f"largest |score| ({limit})",
        [scaled_scores(q, k).tril().abs().max() for _, q, k, _ in trained.heads()],
        columns=trained.layers,
    )
