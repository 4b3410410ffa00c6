"""Batches in, logits out: the fast path against slow, obvious ones."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.model.attention import CausalSelfAttention
from gpt.model.dropout import Dropout, set_generator
from gpt.model.keys_and_values import Rotary
from gpt.model.transformer import GPT, cross_entropy, expand_relu2
from gpt.text.vocabulary import MASKED

B, T, C, H, HS, VS, V = 3, 11, 29, 5, 14, 17, 37  # no two alike


def config(**changes: object) -> ModelConfig:
    sizes = {"T": T, "C": C, "n_layer": 2, "n_head": H, "head_size": HS, "value_size": VS}
    return ModelConfig.model_validate(sizes | changes)


def shaken(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """The module with every parameter drawn at random, so that none is zero and hides a path."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return module.eval()


def normal(x: Tensor) -> Tensor:
    """Of mean 0 and variance 1 along the last axis."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()


def one_head_at_a_time(attention: CausalSelfAttention, x: Tensor, scale: float) -> Tensor:
    """Causal attention as a learner writes it: a loop over texts, heads and places."""
    weight, bias = attention.qkv.weight, attention.qkv.bias
    outputs = []
    for h in range(H):
        rows = [
            slice(h * HS, (h + 1) * HS),
            slice(H * HS + h * HS, H * HS + (h + 1) * HS),
            slice(2 * H * HS + h * VS, 2 * H * HS + (h + 1) * VS),
        ]
        q, k, v = (F.linear(x, weight[r], bias[r] if bias is not None else None) for r in rows)
        if attention.qk_norm:
            q, k = (normal(part) for part in (q, k))
        if attention.rotary is not None:
            q, k = (attention.rotary(part.unsqueeze(1)).squeeze(1) for part in (q, k))
        if attention.key_offset:  # of channels i and i + hs / 2 those that rotary rotates least
            alike = k.clone()
            for i in range(HS):
                if i % (HS // 2) >= HS // 4:
                    k[:, 0, i], k[:, 1:, i] = 0, alike[:, :-1, i]
        y = torch.zeros(x.shape[0], x.shape[1], VS)
        for b in range(x.shape[0]):
            for t in range(x.shape[1]):
                products = torch.stack([q[b, t] @ k[b, s] for s in range(t + 1)])
                weights = (scale * products / math.sqrt(HS)).softmax(0)
                y[b, t] = sum(w * v[b, s] for s, w in enumerate(weights))
        outputs.append(y)
    return F.linear(
        torch.cat(outputs, dim=-1), attention.projection.weight, attention.projection.bias
    )


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("key_offset", [False, True])
@torch.no_grad()
def test_fused_equals_explicit_equals_a_loop_over_heads(positions, qkv_bias, qk_norm, key_offset):
    scale = 1.5 if qk_norm else 1.0
    shape = config(
        positions=positions, qkv_bias=qkv_bias, qk_norm=qk_norm, attention_scale=scale,
        key_offset=key_offset,
    )  # fmt: skip
    attention = shaken(CausalSelfAttention(shape))
    x = torch.randn(B, T, C, generator=torch.Generator().manual_seed(1))
    fused, (explicit, weights) = attention(x), attention.explicit(x)
    assert fused.shape == (B, T, C)
    assert weights.shape == (B, H, T, T)
    torch.testing.assert_close(fused, explicit, rtol=1e-4, atol=1e-5)
    slow = one_head_at_a_time(attention, x, scale)
    torch.testing.assert_close(fused, slow, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("key_offset", [False, True])
def test_the_explicit_gradient_equals_the_fused_one(key_offset):
    attention = shaken(CausalSelfAttention(config(key_offset=key_offset)))
    x = torch.randn(B, T, C, requires_grad=True)
    (fast,) = torch.autograd.grad(attention(x).square().sum(), x)
    (slow,) = torch.autograd.grad(attention.explicit(x)[0].square().sum(), x)
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-3)


def test_attention_equals_torchs_with_copied_weights():
    shape = config(
        C=H * 7, head_size=7, value_size=7, positions="learned", qk_norm=False, qkv_bias=True,
    )  # fmt: skip
    ours = shaken(CausalSelfAttention(shape))
    theirs = torch.nn.MultiheadAttention(H * 7, H, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.qkv.weight,
            "in_proj_bias": ours.qkv.bias,
            "out_proj.weight": ours.projection.weight,
            "out_proj.bias": ours.projection.bias,
        }
    )
    x = torch.randn(B, T, H * 7)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected, weights = theirs(x, x, x, attn_mask=future, average_attn_weights=False)
    q, k, v = ours.heads(x)
    fused = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.explicit(x)[1], weights, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ours.weigh(q, k, v)[0], fused, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("key_offset", [False, True])
@settings(max_examples=20)
@given(t=st.integers(0, T - 1), seed=st.integers(0, 1000))
def test_changing_a_character_changes_no_logit_before_it(positions, key_offset, t, seed):
    model = shaken(GPT(config(positions=positions, key_offset=key_offset), V))
    ids = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))
    changed = ids.clone()
    changed[:, t] = (changed[:, t] + 1) % V
    before, after = model(ids), model(changed)
    assert before[:, :t].equal(after[:, :t])
    assert (before[:, t] != after[:, t]).any(dim=-1).all()


def test_with_offset_keys_one_layer_repeats_what_it_read():
    """Of up to 23 random characters, said twice, the second half follows from the first.

    Without n-gram embeddings: with them one layer learns it, too, though later.
    """
    draw = torch.Generator().manual_seed(0)
    losses = {}
    for key_offset in (False, True):
        shape = ModelConfig(T=46, C=32, n_layer=1, n_head=2, ngram=1, key_offset=key_offset)
        model = GPT(shape, V, torch.Generator().manual_seed(1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(300):
            n = 7 + step % 17  # no head can know the distance
            ids = torch.randint(V, (13, n), generator=draw).repeat(1, 2)
            losses[key_offset] = cross_entropy(model(ids[:, :-1])[:, n:], ids[:, n + 1 :])
            optimizer.zero_grad()
            losses[key_offset].backward()
            optimizer.step()
    assert losses[True] < 1 < 2.5 < losses[False] < math.log(V)


def test_rotary_worked_out_by_hand():
    """hs 4: channels 0 and 2 turn by t, channels 1 and 3 by t/100."""
    rotary = Rotary(config(head_size=4))
    turned = rotary(torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(1, 1, T, 4))[0, 0, 5]
    c, s, c2, s2 = math.cos(5), math.sin(5), math.cos(0.05), math.sin(0.05)
    by_hand = torch.tensor([c - 3 * s, 2 * c2 - 4 * s2, s + 3 * c, 2 * s2 + 4 * c2])
    torch.testing.assert_close(turned, by_hand)


def test_the_initial_weights_follow_from_the_generator_alone():
    first = GPT(config(), V, torch.Generator().manual_seed(5)).state_dict()
    torch.manual_seed(1)
    again = GPT(config(), V, torch.Generator().manual_seed(5)).state_dict()
    assert all(first[name].equal(again[name]) for name in first)
    other = GPT(config(), V, torch.Generator().manual_seed(6)).state_dict()
    assert not first["token_embedding.weight"].equal(other["token_embedding.weight"])


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("size", [V, 1009])
def test_a_new_model_embeds_with_variance_one_half(positions, size):
    """Whatever the number of tables whose rows are added up."""
    model = GPT(config(positions=positions, C=499, ngram=3), size, torch.Generator().manual_seed(5))
    ids = torch.randint(size, (B, T), generator=torch.Generator().manual_seed(5))
    assert model.embed(ids)[:, 2:].var().item() == pytest.approx(0.5, rel=0.1)


def test_a_compiled_model_draws_the_masks_that_it_draws_otherwise():
    """Bugs: the compiler drew masks of its own, seeded by the generator of the process.

    A compiled model drew masks from that generator, too, once another model with the same generator
    was deleted.
    """
    part = torch.nn.Sequential(Dropout(0.3), torch.nn.Linear(C, C), Dropout(0.2))
    x, masks = torch.randn(B, T, C), torch.Generator()
    set_generator(part, masks)
    set_generator(Dropout(0.3), masks)  # deleted at once
    found = []
    for forward in (part, torch.compile(part, backend="aot_eager")):
        masks.manual_seed(3)
        part.zero_grad()
        for _ in range(2):  # micro-batches
            out = forward(x)
            out.square().sum().backward()
        found.append([out, *(p.grad for p in part.parameters())])
    torch.testing.assert_close(*found)


TEXTBOOK = {
    "positions": "learned",
    "qkv_bias": True,
    "qk_norm": False,
    "activation": "gelu",
    "ngram": 1,
}


GPT2_LAYERS = {
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.projection": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.expand": "mlp.c_fc",
    "mlp.projection": "mlp.c_proj",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}


def gpt2_of(model: GPT) -> torch.nn.Module:
    """Hugging Face's GPT-2 with the weights of ours."""
    transformers = pytest.importorskip("transformers")
    ours = model.config
    settings = transformers.GPT2Config(
        vocab_size=V,
        n_positions=ours.T,
        n_embd=ours.C,
        n_layer=ours.n_layer,
        n_head=ours.n_head,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    weights = {}
    for name, weight in model.state_dict().items():
        block, layer, kind = re.fullmatch(r"(blocks\.\d+\.)?(.+)\.(\w+)", name).groups()  # type: ignore[union-attr]
        prefix = block.replace("blocks", "transformer.h") if block else ""
        is_transposed = ".c_" in GPT2_LAYERS[layer]  # as their Conv1D stores a matrix
        weights[f"{prefix}{GPT2_LAYERS[layer]}.{kind}"] = weight.t() if is_transposed else weight
    theirs = transformers.GPT2LMHeadModel(settings).eval()
    theirs.load_state_dict(weights)
    return theirs


def test_logits_and_each_block_equal_gpt2s():
    ours = config(**TEXTBOOK, C=35, head_size=7, value_size=7)
    model = shaken(GPT(ours, V))
    theirs = gpt2_of(model)
    ids = torch.randint(V, (B, T))
    seen: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with torch.no_grad():
        expected = theirs(ids, output_hidden_states=True)
        torch.testing.assert_close(model(ids), expected.logits, rtol=1e-4, atol=1e-3)
    # GPT-2 gives its last hidden state after the final norm
    torch.testing.assert_close(seen[0], expected.hidden_states[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        model.norm(seen[-1]), expected.hidden_states[-1], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_expand_relu2_equals_separate_operations(dtype):
    """In bfloat16, products are rounded to 8 bits."""
    source = torch.Generator().manual_seed(0)
    inputs = [torch.randn(*shape, generator=source) for shape in ((2, 3, 5), (7, 5), (7,))]
    ours, theirs = ([t.clone().requires_grad_() for t in inputs] for _ in range(2))
    y, expected = expand_relu2(*ours, dtype), F.linear(*theirs).relu().square()
    weights = torch.randn(2, 3, 7, generator=source)
    (y * weights).sum().backward()
    (expected * weights).sum().backward()
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), expected, rtol=tolerance, atol=tolerance)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)


def test_rotary_tables_are_right_to_their_last_digit():
    """Computed by torch's threads in float32, they once differed between two starts of a run."""
    rotary = Rotary(config(T=503, head_size=34))
    for t in (0, 1, 63, 64, 257, 502):
        for i in range(17):
            angle = t * 10000.0 ** (-i / 17)
            assert rotary.cos[t, i].item() == pytest.approx(math.cos(angle), abs=6e-8)
            assert rotary.cos[t, 17 + i] == rotary.cos[t, i]
            assert rotary.sin[t, 17 + i].item() == pytest.approx(math.sin(angle), abs=6e-8)
            assert rotary.sin[t, i] == -rotary.sin[t, 17 + i]


def test_a_model_has_one_rotary_table_however_many_layers():
    """500 layers with a table each took 11 GB, for a file of 562 kB."""
    few, many = (sum(table.nbytes for table in GPT(config(n_layer=n), V).buffers()) for n in (1, 7))
    assert 0 < few == many


def test_a_masked_token_adds_nothing_to_any_embedding():
    model = shaken(GPT(config(ngram=3), V))
    ids = torch.randint(V, (B, T))
    masked = torch.rand(B, T) < 0.4
    x = model.embed(ids.masked_fill(masked, MASKED))
    tables = [model.token_embedding.weight, *(table.weight for table in model.ngram_embeddings)]
    for b in range(B):
        for t in range(T):
            seen = [d for d in range(3) if d <= t and not masked[b, t - d]]
            expected = sum((tables[d][ids[b, t - d]] for d in seen), start=torch.zeros(C))
            torch.testing.assert_close(x[b, t], expected)


def test_attention_in_bfloat16_on_a_cpu_is_near_that_in_float32():
    """There it goes another way, by plain products."""
    attention = shaken(CausalSelfAttention(config()))
    x = torch.randn(B, T, C)
    expected = attention(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = attention(x)
    assert got.dtype == torch.bfloat16
    error = (got.float() - expected).norm() / expected.norm()
    assert error < 0.02
