"""Exports to the transformers library: the same logits, the same texts, the same ids."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.config.schema import Config, SampleConfig
from gpt.export.huggingface import export_huggingface, tokenizer_json
from gpt.model.shapes import parameter_shapes
from gpt.runs.format import CheckpointData
from gpt.runs.weights import load_model
from gpt.sampling.generate import generate_text
from gpt.text.vocabulary import BYTES, Vocabulary, normalized
from tests.conftest import full_disk, small

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

VOCABULARY = Vocabulary.of("\n abcdef😀é\ufffd")
T, V = 13, len(VOCABULARY)
MODELS: list[dict[str, Any]] = [
    {"ngram": 4, "key_offset": True, "attention_scale": 1.7},
    {"ngram": 1, "qk_norm": False, "attention_scale": 1.7, "qkv_bias": True},
    {"ngram": 1, "positions": "learned", "activation": "gelu"},
    {"ensemble": 3, "ngram": 2, "qkv_bias": True},
]


@pytest.fixture(autouse=True)
def no_shared_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the copies that transformers makes of modeling_gpt.py in the test's folder."""
    folder = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", folder)
    monkeypatch.setattr(sys, "path", [folder, *sys.path])


def checkpoint_of(config: Config, vocabulary: Vocabulary = VOCABULARY) -> CheckpointData:
    draws = np.random.default_rng(7)
    shapes = parameter_shapes(config.model, len(vocabulary))
    weights = {
        name: draws.normal(scale=0.3, size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    return CheckpointData(17, config, vocabulary, weights, val_loss=1.5)


def exported(checkpoint: CheckpointData) -> Path:
    export_huggingface(Path("runs/r"), checkpoint, Path("out"), overwrite=True)
    return Path("out")


def model_in(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def tokenizer_in(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


@pytest.mark.parametrize("settings", MODELS, ids=str)
def test_an_export_computes_the_same_logits_and_texts(settings):
    """The texts are longer than the context."""
    checkpoint = checkpoint_of(small(**{f"model__{key}": x for key, x in settings.items()}))
    theirs, ours = model_in(exported(checkpoint)), load_model(checkpoint, torch.device("cpu"))
    ids = torch.randint(V, (5, T), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, ours(ids), rtol=1e-4, atol=1e-4)

    prompt, length = "abé", 3 * T
    greedy = SampleConfig(temperature=0)
    expected = prompt + generate_text(ours, VOCABULARY, prompt, length=length, seed=1, rules=greedy)
    start = tokenizer_in(Path("out"))(prompt, return_tensors="pt").input_ids
    for use_cache in (True, False):
        made = theirs.generate(start, max_new_tokens=length, do_sample=False, use_cache=use_cache)
        assert VOCABULARY.decode(made[0].tolist()) == expected


def test_the_loss_has_the_options_of_transformers():
    """Bug: our class ignored the divisor that Trainer sets when it accumulates gradients."""
    model = model_in(exported(checkpoint_of(small())))
    ids = torch.randint(V, (5, 7), generator=torch.Generator().manual_seed(3))
    sums = [loss_sum(model(ids).logits[:, start:-1], ids[:, start + 1 :]) for start in (0, 4)]
    divided = model(ids, labels=ids, num_items_in_batch=101).loss
    assert divided.item() == pytest.approx(sums[0] / 101)
    kept = model(ids, labels=ids[:, 4:], logits_to_keep=3).loss
    assert kept.item() == pytest.approx(sums[1] / (5 * 2))
    with pytest.raises(ValueError, match="batch_size"):
        model(ids, labels=ids, logits_to_keep=3)


def loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> float:
    parts = logits.log_softmax(-1).gather(-1, labels[..., None])
    return -parts.sum().item()


def test_a_pipeline_pads_the_prompts_of_a_batch_on_the_left():
    """Bug: there was no token for padding, so batch_size=2 ended in an error."""
    folder = exported(checkpoint_of(small(model={"ngram": 4, "key_offset": True, "T": T})))
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    texts = transformers.pipeline("text-generation", model_in(folder), tokenizer=tokenizer)
    prompts, rules = ["abcdé", "f\n"], {"max_new_tokens": 5, "do_sample": False}
    alone = [texts(prompt, **rules) for prompt in prompts]
    assert texts(prompts, batch_size=2, **rules) == alone
    assert tokenizer.pad_token_id == V


@pytest.mark.parametrize("vocabulary", [VOCABULARY, BYTES], ids=["characters", "bytes"])
def test_the_tokenizer_of_each_kind_of_model_loads(vocabulary):
    folder = exported(checkpoint_of(small(), vocabulary))
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    text = "a  b\n\n é😀" if vocabulary is not BYTES else " ein\u0301 \x00\t😀 "
    ids = vocabulary.encode(text).tolist()
    assert tokenizer(text).input_ids == ids
    assert tokenizer.decode(ids) == text
    assert [tokenizer.decode([id_]) for id_ in range(len(vocabulary))] == [
        vocabulary.decode([id_]) for id_ in range(len(vocabulary))
    ]


def test_a_tokenizer_refuses_characters_without_an_id():
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(VOCABULARY)))
    with pytest.raises(Exception, match="Missing"):
        tokenizer.encode("abx")


@given(st.text(alphabet="aEé\r\nΩ\u0301\ufb01 ßǅ", max_size=17))
def test_a_tokenizer_normalises_a_text_as_a_prompt(text):
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(BYTES)))
    assert tokenizer.encode(text).ids == [*normalized(text, BYTES).encode()]


@pytest.fixture
def run(config_file: Path, gpt: Callable[..., tuple[int, str, str]]) -> Path:
    code, _, err = gpt("train", "--config", config_file, "--run-dir=runs/r")
    assert code == 0, err
    return Path("runs/r")


def test_the_model_card_states_the_loss_that_transformers_computes(run, text_file, gpt):
    code, out, err = gpt("export", run, "--to=huggingface", "--out=out")
    assert (code, out) == (0, "out\n"), err
    text = text_file.read_text("utf-8")
    ids = tokenizer_in(Path("out"))(text[int(0.9 * len(text)) :]).input_ids
    model, losses = model_in(Path("out")), list[float]()
    with torch.no_grad():
        for start in range(0, len(ids) - 1, 13):
            window = torch.tensor(ids[start : start + 14])
            logits = model(window[None, :-1]).logits[0]
            losses += torch.nn.functional.cross_entropy(
                logits, window[1:], reduction="none"
            ).tolist()
    card = Path("out/README.md").read_text("utf-8")
    stated = re.search(r"val loss \| ([\d.]+) \|", card)
    assert stated
    assert float(stated[1]) == pytest.approx(np.mean(losses), abs=6e-5)

    code, _, err = gpt("export", run, "--to=huggingface", "--out=out")
    assert code == 2
    assert "--overwrite" in err


def test_overwriting_an_export_leaves_other_folders_alone(run, gpt):
    """Bug: `--out . --overwrite` replaced README.md and config.json of any folder."""
    Path("README.md").write_text("mine")
    code, _, err = gpt("export", run, "--to=huggingface", "--out=.", "--overwrite")
    assert (code, "other files" in err, Path("README.md").read_text()) == (2, True, "mine")
    Path("cloned/.git").mkdir(parents=True)
    for _ in range(2):
        assert gpt("export", run, "--to=huggingface", "--out=cloned", "--overwrite")[0] == 0


def test_an_export_names_texts_and_runs_without_their_folders():
    """Bug: the model card showed the user's absolute paths to everybody."""
    data = {"source": ["/secret/a.txt", "secret/b.txt"], "val_source": "/secret/val.txt"}
    folder = exported(checkpoint_of(small(data=data | {"vocabulary": "/secret/runs/v"})))
    assert "| text | a.txt, b.txt |" in (folder / "README.md").read_text("utf-8")
    assert not [file for file in folder.iterdir() if b"secret" in file.read_bytes()]


def test_the_example_of_the_model_card_runs():
    """Bug: the example began with a newline, also if the vocabulary has none."""
    folder = exported(checkpoint_of(small(), Vocabulary.of("'ab")))
    card = (folder / "README.md").read_text("utf-8")
    example = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert example
    exec(example[1], {"FOLDER": folder})


@pytest.mark.parametrize("exists", [False, True])
def test_an_export_that_cannot_be_written_changes_nothing(exists):
    """Bug: it left a folder without weights, which was in the way of the next export."""
    if exists:
        exported(checkpoint_of(small()))
    before = {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()}
    with full_disk(8000), pytest.raises(OSError, match="'out'"):
        exported(checkpoint_of(small(), BYTES))
    assert {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()} == before
    assert Path("out").exists() == exists
