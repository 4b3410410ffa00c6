"""Models of bytes or characters: trained, scored, sampled from and looked into."""

import json
import math
import re
import shutil
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gpt
from gpt.api import Model
from gpt.config.schema import SampleConfig
from gpt.errors import UsageError
from gpt.evaluation.baselines import trigram_bits_per_character
from gpt.model.transformer import GPT
from gpt.reading.sources import open_source
from gpt.runs.read import read_checkpoint, read_summary
from gpt.sampling.choose_engine import engine_of
from gpt.sampling.generate import generate, sample_streams
from gpt.sampling.stopping import Detokenizer, collect
from gpt.text.corpus import load_corpus
from gpt.text.vocabulary import BYTES
from tests.conftest import metrics_of, saved_weights, small

TEXT = "日本語の文章 and naïve English — 👩🚀.\n" * 41 + "いろは\n"
KINDS: dict[str, dict[str, Any]] = {"bytes": {"data.vocabulary": "bytes"}, "characters": {}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of KINDS, of one text."""
    folder = tmp_path_factory.mktemp("vocabularies")
    (folder / "text.txt").write_text(TEXT, "utf-8")
    for kind, changes in KINDS.items():
        train(folder, kind, **changes)
    return folder


def train(folder: Path, name: str, **settings: Any) -> Any:
    text = str(folder / "text.txt")
    return gpt.train(small(), text=text, settings=settings, run_dir=folder / name)


def load(folder: Path, kind: str) -> Model:
    return gpt.load(folder / kind, "last")


def nats(model: GPT, ids: list[int]) -> list[float]:
    """The slow way: what each id but the first costs, from those before it in its window."""
    T, costs = model.config.T, []
    for i in range(1, len(ids)):
        window = ids[(i - 1) // T * T : i]
        with torch.no_grad():
            p = model(torch.tensor([window]))[0, -1].double().softmax(-1)[ids[i]].item()
        costs.append(-math.log(p))
    return costs


# --- losses ---


@pytest.mark.parametrize("text", ["ab", "éa", "日本", "👩a🚀 — naïve", "a日" * 11])
def test_the_loss_of_a_byte_model_is_per_character_of_all_but_the_first(folder, text):
    model = load(folder, "bytes")
    ids = list(text.encode()[len(text[0].encode()) - 1 :])
    assert model.loss(text) == pytest.approx(sum(nats(model.module, ids)) / (len(text) - 1), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_run_reports_its_loss_per_character_and_in_bits_per_byte(folder, kind):
    """On the same characters, whatever the vocabulary, so that runs can be compared."""
    settings = KINDS[kind] | {"train.steps": 3, "train.eval_every": 3}
    outcome = train(folder, f"{kind}-3", **settings)
    model, val = load(folder, f"{kind}-3"), TEXT[int(0.9 * len(TEXT)) :]
    assert len(val[0].encode()) == 3
    per_character = model.loss(val)
    assert outcome.val_loss_per_character == pytest.approx(per_character, rel=1e-6)
    assert outcome.best_val_loss_per_character == pytest.approx(per_character, rel=1e-6)
    bits = per_character * (len(val) - 1) / math.log(2)
    assert outcome.bits_per_byte == pytest.approx(bits / len(val[1:].encode()), rel=1e-6)
    assert read_summary(folder / f"{kind}-3").bits_per_byte == outcome.bits_per_byte
    expected = trigram_bits_per_character(load_corpus(open_source(str(folder / "text.txt"))))
    if kind == "characters":
        assert outcome.trigram_bits_per_character == expected
    records = [record for record in metrics_of(folder / f"{kind}-3") if "val_loss" in record]
    assert len(records) == 2
    if kind == "bytes":
        assert records[-1]["val_loss_per_character"] == outcome.val_loss_per_character
        ratio = len(val[1:].encode()) / (len(val) - 1)
        assert per_character == pytest.approx(ratio * outcome.val_loss, rel=1e-6)
    else:
        assert "val_loss_per_character" not in records[-1]
        assert outcome.val_loss_per_character == outcome.val_loss


# --- the same bits after a resume ---


@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_a_run_resumes_bit_for_bit(folder, kind):
    run = f"{kind}-part"
    train(folder, run, **KINDS[kind], **{"train.stop_at_val_loss": 99})
    gpt.resume(folder / run, settings={"train.stop_at_val_loss": None})
    whole, resumed = (read_checkpoint(folder / name, "last") for name in (kind, run))
    assert resumed.step == whole.step == 11
    assert resumed.vocabulary == whole.vocabulary
    assert saved_weights(folder / run) == saved_weights(folder / kind)
    assert metrics_of(folder / run) == metrics_of(folder / kind)


@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_a_run_with_the_vocabulary_of_another_resumes_without_it(folder, kind):
    lent, run = folder / f"{kind}-lent", f"{kind}-borrowed"
    shutil.copytree(folder / kind, lent)
    (folder / "text.txt").write_text(TEXT[::2], "utf-8")
    settings = {"data.vocabulary": str(lent), "train.steps": 3, "train.eval_every": 3}
    try:
        train(folder, run, **settings)
        shutil.rmtree(lent)
        outcome = gpt.resume(folder / run, settings={"train.steps": 5})
    finally:
        (folder / "text.txt").write_text(TEXT, "utf-8")
    assert outcome.step == 5
    assert load(folder, run).vocabulary.names == load(folder, kind).vocabulary.names


# --- bytes as characters ---


@given(st.binary(max_size=29))
def test_bytes_become_characters_as_they_come(content):
    """Whatever they are: the last byte ends what is no character, as decoding all at once does."""
    detokenizer, draws = Detokenizer(BYTES), np.random.default_rng(1)
    costs = draws.random(len(content) + 1).tolist()
    pushed = [
        character
        for byte, cost in zip(content + b".", costs, strict=True)
        for character in detokenizer.push(byte, cost)
    ]
    assert "".join(c for c, _ in pushed) == (content + b".").decode(errors="replace")
    assert sum(cost for _, cost in pushed) == pytest.approx(sum(costs))
    assert pushed[-1] == (".", costs[-1])


# --- sampling ---


def byte_bigrams(text: str) -> GPT:
    """A model of bytes in which each byte of the text makes the one after it by far likeliest."""
    model = GPT(small(model__ngram=1).model, 256, torch.Generator().manual_seed(3)).eval()
    with torch.no_grad():  # a new model's blocks add nothing to the embedding
        for first, second in pairwise(text.encode()):
            model.head.weight[second] = 20 * model.token_embedding.weight[first]
    return model


def test_a_characters_cost_is_the_sum_of_its_bytes():
    model, greedy = byte_bigrams("\né🚀"), SampleConfig(temperature=0)
    chunks = generate(
        engine_of(model, 1), BYTES, [[10]], sample_streams(1, [0]), length=2, rules=greedy
    )
    (sample,) = collect(chunks, ["\n"])
    assert sample.text == "é🚀"
    first, second, *others = [-cost for cost in nats(model, list("\né🚀".encode()))]
    assert sample.log_probabilities == pytest.approx([first + second, sum(others)], rel=1e-4)


# --- prompts ---


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_prompt_takes_the_unicode_form_of_the_text(folder, form):
    """Bug: a prompt with é as two characters was refused where the text has one: leave it out."""
    text = unicodedata.normalize(form, "il était un élève à la forêt\n" * 20)
    (folder / f"{form}.txt").write_text(text, "utf-8")
    run = gpt.train(small(), text=folder / f"{form}.txt", run_dir=folder / form)
    model = gpt.load(run.run)
    for other in ("NFC", "NFD"):
        prompt = unicodedata.normalize(other, "forêt ét")
        assert model.prepare(prompt) == unicodedata.normalize(form, prompt)
        assert model.loss(prompt) == model.loss(unicodedata.normalize(form, prompt))
    with pytest.raises(UsageError, match=r"outside the model's vocabulary: x; leave"):
        model.prepare(unicodedata.normalize("NFD", "éx"))


# --- the command line ---


def test_a_page_and_a_picture_name_the_bytes(folder, gpt):
    for name in ("a.html", "a.png"):
        code, out, _ = gpt("attend", folder / "bytes", "--text", "a日\n", "--out", name)
        assert (code, out) == (0, f"{name}\n")
    page = Path("a.html").read_text("utf-8")
    data = json.loads(re.search(r'id="data">(.*)</script>', page)[1])  # type: ignore[index]
    assert (data["text"], data["unit"]) == (["a", r"\xe6", r"\x97", r"\xa5", "\n"], "byte")


def test_a_lesson_follows_a_byte_in_a_model_of_bytes(folder, gpt):
    code, out, _ = gpt("explain", "follow", "--run", folder / "bytes", "--text", "a日n")
    assert (code, "5 bytes:" in out, r"t=1 \xe6" in out) == (0, True, True)


def test_explain_reads_a_text_as_the_run_did(folder, gpt):
    code, out, _ = gpt("explain", "follow", "--run", folder / "characters", "--text", "and\r")
    assert (code, "4 characters:\nand↵\n" in out) == (0, True)
    code, _, err = gpt("explain", "follow", "--run", folder / "bytes", "--text", "日本語の文")
    assert (code, "--text: expected 1 to 13 bytes, got 15" in err) == (2, True)
