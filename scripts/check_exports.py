#!/usr/bin/env python3
"""Read exports back in new environments, each of which has only the library of the format.

    python scripts/check_exports.py TEXT

TEXT is a file with at least 20,000 characters. One small model of each kind is trained on it and
exported to each format that can represent it. In the new environments there is no network, and gpt
cannot be imported. The log-probabilities after 20 passages are compared with those of gpt.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from importlib import metadata
from pathlib import Path

from gpt import api
from gpt.errors import UsageError

PASSAGES = 20
SETTINGS: dict[str, object] = {
    "threads": 1,
    "model.T": 64,
    "model.C": 64,
    "model.n_layer": 2,
    "model.n_head": 2,
    "train.steps": 20,
    "train.sample_length": 0,
}
PLAIN: dict[str, object] = {"model.ngram": 1, "model.qk_norm": False}
KINDS: dict[str, dict[str, object]] = {
    "learned positions": PLAIN | {"model.positions": "learned", "model.activation": "gelu"},
    "rotary": PLAIN,
    "rotary, QK norm": {"model.ngram": 1, "model.attention_scale": 1.5},
    "rotary, QK norm, n-grams, key offset": {"model.key_offset": True},
    "an ensemble of these": {"model.key_offset": True, "model.ensemble": 2},
    "bytes": PLAIN | {"data.vocabulary": "bytes"},
}
# Each program defines `name`, `encode` and `log_probabilities` for the export at `path`.
TRANSFORMERS = """
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)
name = type(model).__name__

def encode(text):
    return tokenizer(text).input_ids

def log_probabilities(text):
    with torch.no_grad():
        logits = model(torch.tensor([encode(text)])).logits
    return logits[0, -1].double().log_softmax(-1).tolist()
"""
LLAMA_CPP = """
import urllib.request
import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = path, 256, 1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)
name = "llama.cpp"

def encode(text):
    body = json.dumps({"content": text}).encode()
    request = urllib.request.Request(f"{server.listening_address}/tokenize", body)
    return json.load(urllib.request.urlopen(request))["tokens"]

def log_probabilities(text):
    V = len(passages[0][2])
    options = {"prompt": text, "n_predict": 1, "n_probs": V, "temperature": 1.0}
    content = server.handle_completions(options)["choices"][0]["logprobs"]["content"]
    found = {each["id"]: each["logprob"] for each in content[0]["top_logprobs"]}
    return [found[id_] for id_ in range(V)]
"""
READ = """
import importlib.util, json, sys
assert importlib.util.find_spec("gpt") is None
path, passages = sys.argv[1], json.load(open(sys.argv[2]))
"""
COMPARE = """
worst = 0
for text, ids, expected in passages:
    assert encode(text) == ids, text
    found = log_probabilities(text)
    worst = max(worst, max(abs(a - b) for a, b in zip(found, expected, strict=True)))
print(f"{name}: {len(passages)} texts, largest difference of a log-probability {worst:.1e}")
"""
FORMATS = {
    "huggingface": (["torch", "transformers"], "", TRANSFORMERS),
    "gguf": (["xllamacpp"], ".gguf", LLAMA_CPP),
}


def make_environment(folder: Path, packages: list[str]) -> Path:
    """Make a new environment in `folder`, with the same versions as here; return its Python."""
    venv.create(folder, with_pip=True)
    python = next(path for path in folder.glob("*/python*") if path.stem == "python")
    pinned = [f"{package}=={metadata.version(package)}" for package in packages]
    subprocess.run([python, "-m", "pip", "install", "-q", *pinned], check=True)
    return python


def passages_of(model: api.Model, text: str) -> list[tuple[str, list[int], list[float]]]:
    """Return passages of `text`, their ids, and the log-probabilities (V,) of the next id."""
    passages = []
    for i in range(PASSAGES):
        passage = text[1000 * i : 1000 * i + 3 * i + 1]
        ids = model.vocabulary.encode(passage).tolist()
        passages.append((passage, ids, model.logits(passage)[-1].double().log_softmax(-1).tolist()))
    return passages


def main(text: Path, folder: Path) -> None:
    """Train, export and read each kind of model in `folder`; print a line for each export."""
    runs = {kind: folder / f"run-{i}" for i, kind in enumerate(KINDS)}
    for kind, changes in KINDS.items():
        api.train(text=str(text), settings=SETTINGS | changes, run_dir=runs[kind])
    passages = folder / "passages.json"
    for to, (packages, ending, program) in FORMATS.items():
        python = make_environment(folder / to, packages)
        offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
        for kind, run in runs.items():
            model, out = api.load(run), folder / f"{run.name}-{to}{ending}"
            try:
                model.export(to, out)
            except UsageError as refusal:
                print(f"{to}, {kind}: refused: {refusal}")
                continue
            passages.write_text(json.dumps(passages_of(model, text.read_text("utf-8"))))
            done = subprocess.run(
                [python, "-I", "-c", READ + program + COMPARE, out, passages],
                env=offline,
                cwd=folder,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                sys.exit(f"{to}, {kind}: {done.stderr}")
            print(f"{to}, {kind}: {done.stdout.splitlines()[-1]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(arguments.text, Path(temporary))
