"""Exports as GGUF: llama.cpp computes the same probabilities, ids and texts."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.errors import ConfigError, GPTError, UsageError
from gpt.export.gguf_file import export_gguf, gguf_tensors
from gpt.model.shapes import parameter_shapes
from gpt.runs.format import CheckpointData
from gpt.runs.weights import load_model
from gpt.text.vocabulary import BYTES, Vocabulary

gguf = pytest.importorskip("gguf")

OUT = Path("model.gguf")
VOCABULARY = Vocabulary.of("\0\n\r .,!?'abcdefg0Ġ▁é“”日本😀😁")  # characters of 1 to 4 bytes
TEXTS = ["a", " ", "\n\n", "é“😀", " ab ,cd.\r\n  e !", "日本'd\0“”😁Ġ▁g00", "abcdefg" * 9]
UNKNOWN = "aèz’\x7f語😂b"  # only a and b are known; the others share bytes with known ones
MODELS: dict[str, dict[str, Any]] = {
    "nemotron": {"attention_scale": 1.7},
    "starcoder2": {"activation": "gelu", "qkv_bias": True},
    "gpt2": {"positions": "learned", "activation": "gelu", "attention_scale": 1.7},
}


def checkpoint_of(vocabulary: Vocabulary = VOCABULARY, **settings: Any) -> CheckpointData:
    sizes = {"T": 67, "C": 42, "n_layer": 2, "n_head": 3, "exportable": True}
    config = Config.model_validate({"model": sizes | settings})
    draws = np.random.default_rng(7)
    shapes = parameter_shapes(config.model, len(vocabulary))
    weights = {
        name: draws.normal(1.0 if name.endswith("norm.weight") else 0.0, 0.3, shape)
        for name, shape in shapes.items()
    }
    float32 = {name: weight.astype(np.float32) for name, weight in weights.items()}
    return CheckpointData(17, config, vocabulary, float32)


def exported(checkpoint: CheckpointData) -> Path:
    export_gguf("r", checkpoint, OUT)
    return OUT


class LlamaCpp:
    """llama.cpp's own server, with a model in a GGUF file."""

    def __init__(self, path: Path) -> None:
        xllamacpp = pytest.importorskip("xllamacpp")
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 256, 1, 1
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = xllamacpp.Server(params)

    def ids(self, text: str) -> list[int]:
        request = urllib.request.Request(
            f"{self.server.listening_address}/tokenize", json.dumps({"content": text}).encode()
        )
        with urllib.request.urlopen(request) as response:
            tokens: list[int] = json.load(response)["tokens"]
        return tokens

    def complete(self, prompt: str, length: int, **options: Any) -> Any:
        options |= {"prompt": prompt, "n_predict": length}
        return self.server.handle_completions(options)["choices"][0]

    def log_probabilities(self, prompt: str, V: int) -> torch.Tensor:
        """The log-probabilities (V,) of the character after `prompt`."""
        choice = self.complete(prompt, 1, n_probs=V, temperature=1.0)
        top = {
            each["id"]: each["logprob"] for each in choice["logprobs"]["content"][0]["top_logprobs"]
        }
        assert sorted(top) == [*range(V)]
        return torch.tensor([top[i] for i in range(V)], dtype=torch.float64)


@pytest.mark.parametrize("architecture", MODELS)
def test_llama_cpp_computes_the_same_probabilities_and_texts(architecture: str) -> None:
    checkpoint = checkpoint_of(**MODELS[architecture])
    theirs, ours = LlamaCpp(exported(checkpoint)), load_model(checkpoint, torch.device("cpu"))
    tolerance = 1e-4 if architecture == "nemotron" else 3e-3  # its GELU is a table in float16

    def log_probabilities(text: str) -> torch.Tensor:
        ids = torch.from_numpy(VOCABULARY.encode(text).astype(int))
        with torch.no_grad():
            return ours(ids[None])[0, -1].double().log_softmax(-1)

    for text in TEXTS:
        assert theirs.ids(text) == VOCABULARY.encode(text).tolist()
        found = theirs.log_probabilities(text, len(VOCABULARY))
        torch.testing.assert_close(found, log_probabilities(text), rtol=0, atol=tolerance)
    if architecture == "nemotron":
        text = "ab"
        for _ in range(29):
            text += VOCABULARY.decode([int(log_probabilities(text).argmax())])
        assert theirs.complete("ab", 29, temperature=0.0)["text"] == text[2:]


def test_llama_cpp_skips_unknown_characters_and_reads_any_bytes() -> None:
    """Bug of llama.cpp: with its RWKV tokenizer, such a character takes all memory."""
    assert LlamaCpp(exported(checkpoint_of())).ids(UNKNOWN) == VOCABULARY.encode("ab").tolist()
    theirs = LlamaCpp(exported(checkpoint_of(BYTES)))
    assert theirs.ids(UNKNOWN) == list(UNKNOWN.encode())
    letters = Vocabulary.of("ab")  # no merges, and fewer tokens than llama.cpp's default of 12
    theirs = LlamaCpp(exported(checkpoint_of(letters)))
    assert theirs.ids(UNKNOWN) == [0, 1]
    choice = theirs.complete("a", 41, temperature=1.0, seed=3)
    assert choice["finish_reason"] == "length"
    assert len(choice["text"]) == 41


@pytest.mark.parametrize("architecture", MODELS)
def test_the_file_contains_the_tensors_and_the_metadata(architecture: str) -> None:
    checkpoint = checkpoint_of(**MODELS[architecture])
    reader = gguf.GGUFReader(exported(checkpoint))
    tensors = gguf_tensors(checkpoint.config.model, checkpoint.weights)
    assert {each.name for each in reader.tensors} == tensors.keys()
    for each in reader.tensors:
        np.testing.assert_array_equal(each.data, tensors[each.name])
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    assert metadata["general.architecture"] == architecture
    assert metadata[f"{architecture}.context_length"] == 67
    assert len(metadata["tokenizer.ggml.tokens"]) == len(VOCABULARY) + 1


@given(st.integers(0, 2**32 - 1))
def test_the_output_layer_has_the_same_logits_and_none_for_the_end(seed: int) -> None:
    draws = np.random.default_rng(seed)
    checkpoint = checkpoint_of()
    weights, tensors = checkpoint.weights, gguf_tensors(checkpoint.config.model, checkpoint.weights)
    n = draws.normal(size=42)
    n = (n - n.mean()) / n.std()
    ours = weights["head.weight"] @ (weights["norm.weight"] * n + weights["norm.bias"])
    theirs = tensors["output.weight"] @ (
        n * tensors["output_norm.weight"] + tensors["output_norm.bias"]
    )
    np.testing.assert_allclose(theirs, [*ours, -1000], rtol=0, atol=1e-4)


def test_a_model_that_llama_cpp_cannot_run_is_refused_with_each_reason() -> None:
    wrong = {"exportable": False, "ngram": 3, "qk_norm": True, "key_offset": True, "ensemble": 2}
    checkpoint = checkpoint_of(Vocabulary("abc", unknown=5), head_size=8, value_size=5, **wrong)
    with pytest.raises(UsageError) as caught:
        exported(checkpoint)
    assert str(caught.value) == (
        "--to gguf: llama.cpp has no architecture for model.ngram 3 (expected 1), model.qk_norm "
        "true (expected false), model.key_offset true (expected false), model.ensemble 2 (expected "
        "1), model.head_size 8 (expected 14), model.value_size 5 (expected 8), 5 characters that "
        "share one id (expected 0); train a model with --set model.exportable=true, or choose "
        "another format"
    )
    assert not OUT.exists()


def test_a_file_that_cannot_be_written_leaves_nothing() -> None:
    """Bug: the message was `OSError: 1488 requested and 0 written`."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limits[1]))
    try:
        with pytest.raises(GPTError, match=r"^model\.gguf: cannot write it"):
            exported(checkpoint_of())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [*Path().iterdir()]


def test_exportable_needs_channels_that_divide_among_the_heads() -> None:
    """Bug: the message was to set model.head_size, and then expected a head_size of 9.6."""
    with pytest.raises(ConfigError, match=r"C 48 \(expected a multiple of model\.n_head 5"):
        load_config(None, ["model.exportable=true", "model.C=48", "model.n_head=5"])


@pytest.mark.parametrize(
    "setting",
    ["model.ngram=2", "model.qk_norm=true", "model.counts=4", "model.positions=learned",
     "model.ensemble=3", "model.key_offset=true", "data.max_vocabulary=7"],
)  # fmt: skip
def test_exportable_sets_what_is_left_open_and_refuses_the_rest(setting: str) -> None:
    config = load_config(None, ["model.exportable=true", "model.C=96"])
    assert config.model.obstacles() == []
    assert Config().model.obstacles() != []
    with pytest.raises(ConfigError, match=setting.split("=")[0]):
        load_config(config, [setting])
