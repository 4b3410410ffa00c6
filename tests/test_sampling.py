"""A model in, characters out."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpt.api import Model
from gpt.cli.repl import HELP, Repl
from gpt.config.schema import SampleConfig
from gpt.errors import CheckpointError, UsageError
from gpt.model.ensemble import LanguageModel, make_model
from gpt.model.transformer import GPT
from gpt.runs.format import CheckpointData
from gpt.runs.weights import load_model
from gpt.sampling import numpy_engine
from gpt.sampling.choose_engine import Engine, engine_of
from gpt.sampling.generate import Generator, generate, generate_text, sample_streams
from gpt.sampling.sampler import (
    apply_temperature,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    log_softmax,
    sampling_rules,
)
from gpt.sampling.stopping import Chunk, collect, in_order
from gpt.sampling.torch_engine import TorchEngine
from gpt.text.vocabulary import Vocabulary, encode_prompt
from tests.conftest import small

VOCABULARY = Vocabulary.of("\n abcdefghij")
V, T = len(VOCABULARY), 13
SHAPES: list[dict[str, Any]] = [
    {"attention_scale": 1.5},
    {"positions": "learned", "qkv_bias": True},
    {"ngram": 1, "qk_norm": False, "activation": "gelu"},
    {"positions": "learned", "ngram": 2, "qk_norm": False, "attention_scale": 0.7},
    {"key_offset": True},
    {"key_offset": True, "positions": "learned", "head_size": 6},
    {"ensemble": 3},
    {"ensemble": 2, "key_offset": True, "ngram": 1},
    {"ensemble": 2, "positions": "learned", "qkv_bias": True},
]
logits_of = st.lists(st.floats(-30, 30), min_size=1, max_size=23).map(lambda x: np.array([x]))


def rules_of(**changes: Any) -> SampleConfig:
    return SampleConfig.model_validate({"temperature": 1.0} | changes)


def model(**changes: Any) -> LanguageModel:
    """With weights unlike any that a new model has: no zeros, no norms without effect."""
    generator = torch.Generator().manual_seed(3)
    config = small(**{f"model__{k}": v for k, v in changes.items()}).model
    new = GPT(config, V, generator) if config.ensemble == 1 else make_model(config, V, seed=3)
    for parameter in new.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return new.eval()


def last_logits(net: LanguageModel, ids: list[int]) -> NDArray[np.float64]:
    """The slow way: the whole context anew."""
    with torch.no_grad():
        return net(torch.tensor([ids]))[0, -1].double().numpy()


def sample(prompt: str = "", length: int = 29, **options: Any) -> str:
    return generate_text(model(), VOCABULARY, prompt, **({"length": length, "seed": 5} | options))


def chunks_of(
    engine: Engine,
    vocabulary: Vocabulary,
    prompts: list[list[int]],
    seed: int,
    indices: list[int] | None = None,
    **options: Any,
) -> Iterator[Chunk]:
    streams = sample_streams(seed, range(len(prompts)) if indices is None else indices)
    return generate(engine, vocabulary, prompts, streams, **options)


def engines(net: LanguageModel, B: int) -> list[Engine]:
    return [engine_of(net, B), TorchEngine(net, B)]


@given(logits=logits_of, k=st.integers(1, 29))
def test_top_k_keeps_the_k_largest(logits, k):
    kept = keep_top_k(logits, k)[0]
    edge = sorted(logits[0], reverse=True)[min(k, logits.size) - 1]
    for before, after in zip(logits[0], kept, strict=True):
        assert after == (before if before >= edge else -math.inf)


@given(logits=logits_of, p=st.floats(0, 1))
def test_top_p_keeps_the_fewest_that_make_up_p(logits, p):
    probabilities = np.exp(log_softmax(logits))[0]
    kept = keep_top_p(logits, p)[0] > -math.inf
    assert kept.any()
    assert probabilities[kept].sum() >= p - 1e-9
    edge = logits[0][kept].min()
    assert kept.tolist() == (logits[0] >= edge).tolist()  # the likeliest, equals among them
    fewer = probabilities[logits[0] > edge].sum()
    assert fewer < p + 1e-9 or not (logits[0] > edge).any()


@given(logits=logits_of, p=st.floats(0, 1))
def test_min_p_keeps_what_is_p_times_as_likely_as_the_top(logits, p):
    probabilities = [math.exp(x - logits.max()) for x in logits[0]]
    for before, after, relative in zip(
        logits[0], keep_min_p(logits, p)[0], probabilities, strict=True
    ):
        if abs(relative - p) > 1e-12:
            assert after == (before if relative > p else -math.inf)


@given(logits=logits_of, temperature=st.floats(0.05, 20))
def test_temperature_raises_probabilities_to_its_inverse(logits, temperature):
    got = np.exp(log_softmax(apply_temperature(logits, temperature)))
    powers = np.exp(log_softmax(logits)) ** (1 / temperature)
    np.testing.assert_allclose(got, powers / powers.sum(), rtol=1e-6, atol=1e-9)


@given(
    logits=st.lists(st.one_of(st.floats(-30, 30), st.just(-math.inf)), min_size=1, max_size=23),
    u=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, math.nextafter(1, 0)])),
)
def test_a_draw_is_where_the_summed_probabilities_pass_the_number(logits, u):
    logits[len(logits) // 2] = 1.0
    got = int(draw(np.array([logits]), np.array([u]))[0])
    weights = [math.exp(x) for x in logits]
    below, above = math.fsum(weights[:got]), math.fsum(weights[: got + 1])
    assert weights[got] > 0, "what has no probability is never drawn"
    assert below - 1e-9 <= u * math.fsum(weights) <= above + 1e-9


def test_the_rules_are_the_configs_but_for_the_flags():
    config = SampleConfig(temperature=0.3, top_k=7)
    assert sampling_rules(config) == config
    changed = sampling_rules(
        config,
        temperature=0.0,
        top_k=None,
        top_p=np.float32(0.5),  # type: ignore[arg-type]
    )
    assert changed == SampleConfig(temperature=0.0, top_k=7, top_p=0.5)
    with pytest.raises(UsageError, match="temperature: expected a finite number, got inf"):
        sampling_rules(config, temperature=math.inf)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=7)
@given(data=st.data())
def test_readers_give_the_logits_of_the_whole_text(shape, data):
    """Texts of any lengths, read together, replaced and dropped."""
    net, B = model(**shape), data.draw(st.integers(1, 5))
    id_ = st.integers(0, V - 1)
    texts = [data.draw(st.lists(id_, max_size=T - 5)) for _ in range(B)]
    pair = engines(net, B)
    for engine in pair:
        engine.prefill(list(range(B)), texts)
    for step in range(5):
        if step == 2:
            texts[0] = data.draw(st.lists(id_, max_size=T - 5))
            for engine in pair:
                engine.prefill([0], [texts[0]])
        if step == 3:
            texts = [texts[0]] * B
            for engine in pair:
                engine.select([0] * B)
        if step == 4:
            kept = data.draw(st.lists(st.sampled_from(range(B)), min_size=1, unique=True))
            texts = [texts[row] for row in kept]
            for engine in pair:
                engine.select(kept)
        new = [data.draw(id_) for _ in texts]
        texts = [[*text, id_] for text, id_ in zip(texts, new, strict=True)]
        expected = np.stack([last_logits(net, text) for text in texts])
        for engine in pair:
            np.testing.assert_allclose(engine.decode(new), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scores", [1, 7 * 3 * 263, 10**9])
def test_an_engine_whose_caches_grow_gives_the_logits_of_the_whole_text(scores, monkeypatch):
    """They once had room for T from the start: 67 GB for a file of 562 kB."""
    monkeypatch.setattr(numpy_engine, "SCORES_NUMBERS", scores)
    net = model(T=521)
    texts = [[i % V for i in range(n)] for n in (257, 263)]
    engine, _ = engines(net, 2)
    engine.prefill([0, 1], texts)
    for id_ in range(3):
        texts = [[*text, id_] for text in texts]
        expected = np.stack([last_logits(net, text) for text in texts])
        np.testing.assert_allclose(engine.decode([id_, id_]), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of numpy's OpenBLAS")
def test_the_command_line_computes_products_in_one_thread():
    """Bug: BLAS's threads waited for each other beside a busy program, 27 times as long."""
    program = (
        "import sys, psutil\nfrom gpt.__main__ import main\nsys.argv = ['gpt', '--version']\n"
        "try:\n    main()\nexcept SystemExit:\n    import numpy as np\n"
        "x = np.ones((999, 999), np.float32)\nx @ x\nprint(psutil.Process().num_threads())"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1"


@pytest.mark.parametrize("positions", ["rotary", "learned"])
@pytest.mark.parametrize(
    ("context", "left"), [(1, 1), (2, 1), (3, 1), (13, 6), (131, 65), (269, 134)]
)
@pytest.mark.parametrize("which", [0, 1])
def test_each_character_has_the_context_that_the_docstring_says(positions, context, left, which):
    """The uncached model on exactly that context; prompts of three lengths, one past T.

    Half of T once was an eighth, and text with structure, which needs context, suffered.
    """
    net = model(positions=positions, T=context)
    prompts = [[1, 2, 3, 4] * (context // 4 + 1), [5], [7, 8, 2]]
    generator = Generator(engines(net, 3)[which], prompts, sample_streams(3, range(3)))
    contexts = [prompt[-context:] for prompt in prompts]
    for _ in range(41):
        ids, log_probabilities = generator.step()
        for b in range(3):
            if len(contexts[b]) > context:
                contexts[b] = contexts[b][-left:]
            expected = log_softmax(last_logits(net, contexts[b])[None])[0, ids[b]]
            assert log_probabilities[b, ids[b]] == pytest.approx(expected, abs=1e-3)
            contexts[b].append(ids[b])


def test_a_sample_follows_from_its_own_prompt_and_number():
    """More samples of one prompt once changed those of the next."""
    prompts = ["ab", "ab", "c", "c"]
    ids = [encode_prompt(prompt, VOCABULARY) for prompt in prompts]
    chunks = chunks_of(
        engine_of(model(), 4), VOCABULARY, ids, length=19, seed=5, indices=[0, 1, 0, 1]
    )
    texts = [sample.text for sample in collect(chunks, prompts)]
    assert texts[0] != texts[1]
    assert [texts[0], texts[2]] == [sample("ab", length=19), sample("c", length=19)]


def data_of(net: LanguageModel) -> CheckpointData:
    weights = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    return CheckpointData(0, small(model=net.config.model_dump()), VOCABULARY, weights)


def test_a_model_of_no_numbers_is_told():
    """It once wrote blank lines, in silence."""
    net = model()
    net.norm.bias.data[3] = math.nan
    with pytest.raises(CheckpointError, match="its logits are NaN or infinite"):
        generate_text(net, VOCABULARY, length=3, seed=0)
    net.norm.bias.data.fill_(3e38)
    net.token_embedding.weight.data.fill_(3e38)
    with pytest.raises(CheckpointError, match="its logits are NaN or infinite"):
        generate_text(net, VOCABULARY, length=3, seed=0)


def test_a_prompt_is_read_once_for_all_its_samples():
    """64 samples of a long prompt once read it 64 times, all at once: 18 s and 0.9 GB."""
    reads, selected = list[int](), list[list[int]]()

    class Counting(Script):
        def prefill(self, rows: list[int], texts: list[list[int]]) -> None:
            reads.append(len(rows))

        def select(self, rows: list[int]) -> None:
            selected.append(rows)

        def decode(self, ids: list[int]) -> NDArray[np.float32]:
            return np.zeros((len(ids), V), np.float32)

    engine = Counting("")
    Generator(engine, [[1, 2]] * 3 + [[1, 3]] * 2, sample_streams(3, range(5)))
    assert (reads, selected) == ([2], [[0, 0, 0, 3, 3]])


class Script:
    """A engine of a model that writes one text, whatever it reads."""

    def __init__(self, text: str) -> None:
        self.T, self.ids = 5, iter(VOCABULARY.encode(text).tolist())

    def prefill(self, rows: list[int], texts: list[list[int]]) -> None:
        assert rows == list(range(len(rows)))

    def select(self, rows: list[int]) -> None:
        raise AssertionError(rows)

    def decode(self, ids: list[int]) -> NDArray[np.float32]:
        return np.log(np.eye(V, dtype=np.float32)[[next(self.ids)]] + 1e-30)


@given(
    text=st.text("ab\n", min_size=1, max_size=29),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_a_sample_ends_before_its_first_stop_and_no_part_of_it_is_shown(text, stops):
    """Bug: of several stops that end at once, the first on the command line was taken."""
    chunks = list(chunks_of(Script(text), VOCABULARY, [[0]], length=len(text), seed=0, stops=stops))
    ends = (n for n in range(len(text) + 1) if text[:n].endswith(tuple(stops)))
    first = min(ends, default=None) if stops else None
    whole = collect(chunks, [""])[0]
    if first is None:
        assert (whole.text, whole.stop) == (text, None)
    else:
        longest = max((s for s in stops if text[:first].endswith(s)), key=len)
        assert (whole.text, whole.stop) == (text[: first - len(longest)], longest)
    assert len(whole.log_probabilities) == len(whole.text)
    assert [chunk.ended for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(len(chunk.text) == len(chunk.log_probabilities) for chunk in chunks)


def test_what_is_loaded_drops_nothing_out():
    """A model that was trained with dropout once gave other logits at each call."""
    net = model(dropout=0.5)
    loaded = load_model(data_of(net), torch.device("cpu"))
    ids = torch.arange(V)[None]
    with torch.no_grad():
        assert loaded(ids).equal(loaded(ids))
        torch.testing.assert_close(loaded(ids), net(ids))
    engine = TorchEngine(loaded, 1)
    engine.prefill([0], [[1, 2]])
    np.testing.assert_allclose(engine.decode([3])[0], last_logits(net, [1, 2, 3]), atol=1e-4)


def test_log_probabilities_are_the_models_own():
    """At temperature 1 and before any rule, whatever was drawn by."""
    net, ids = model(), encode_prompt("ab", VOCABULARY)
    rules = rules_of(temperature=0.5, top_k=3)
    chunks = chunks_of(engine_of(net, 1), VOCABULARY, [ids], length=9, seed=1, rules=rules)
    got = collect(chunks, ["ab"])[0]
    seen = list(ids)
    for character, log_probability in zip(got.text, got.log_probabilities, strict=True):
        (id_,) = encode_prompt(character, VOCABULARY)
        expected = log_softmax(last_logits(net, seen)[None])[0, id_]
        assert log_probability == pytest.approx(expected, abs=1e-3)
        seen.append(id_)


def test_samples_are_shown_in_order_the_first_as_it_comes():
    def chunks() -> Iterator[Chunk]:
        yield Chunk(0, "a", [0.0])
        yield Chunk(1, "x", [0.0], ended=True)
        yield Chunk(2, "r", [0.0])
        yield Chunk(0, "b", [0.0], ended=True)
        yield Chunk(2, "s", [0.0], ended=True)

    shown = in_order(chunks(), ["P", "Q", ""])
    assert [next(shown), next(shown)] == ["P", "a"]
    assert "".join(shown) == "b\n---\nQx\n---\nrs\n"
    assert "".join(in_order(iter([Chunk(0, "a", [0.0], ended=True)]), ["P"])) == "Pa\n"


def converse(*lines: str | type[BaseException], folder: str = "r", **options: Any) -> str:
    """What is shown after the help, if these lines are typed."""
    shown: list[str] = []
    typed = iter(lines)

    def read(prompt: str) -> str:
        shown.append(prompt)
        line = next(typed, EOFError)
        if isinstance(line, str):
            return line
        raise line

    rules = SampleConfig(temperature=1.0, length=7)
    loaded = Model(Path(folder), data_of(model()), "cpu")
    Repl(loaded, 5, rules, **options).run(read, shown.append)
    assert shown[0] == HELP + "\n"
    return "".join(shown[1:])


def test_each_text_takes_the_next_seed():
    first, second = sample("ab", length=7), sample("ab", length=7, seed=6)
    assert converse("ab", "ab") == f"> ab{first}\n> ab{second}\n> \n"
    assert converse("ab", "/seed 5", "ab") == f"> ab{first}\n> seed 5\n> ab{first}\n> \n"


def test_continue_continues_the_last_text():
    first = sample("ab", length=7)
    second = sample("ab" + first, length=7, seed=6)
    third = sample("ab" + first + second, length=7, seed=7)
    shown = converse("/continue", "ab", "/continue", "/continue")
    assert shown.startswith("> /continue: there is no text yet; type the beginning of one\n")
    assert shown.endswith(f"> ab{first}\n> {second}\n> {third}\n> \n")


def test_commands_change_how_the_next_text_is_sampled():
    rules = rules_of(temperature=0.2, top_k=3, top_p=0.9, min_p=0.01)
    text = sample("ab", length=3, seed=9, rules=rules)
    commands = ["/length 3", "/temperature 0.2", "/top-k 3", "/top-p 0.9", "/min-p 0.01", "/seed 9"]
    shown = converse(*commands, "ab", "/help", "/quit", "ab")
    assert shown.endswith(f"> ab{text}\n> {HELP}\n> ")
