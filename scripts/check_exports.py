#!/usr/bin/env python3
"""Read exports for transformers back in a new environment that has only torch and transformers.

    python scripts/check_exports.py TEXT

TEXT is a file with at least 20,000 characters. One small model of each kind is trained on it and
exported. The new environment has no network, and cannot import gpt. The log-probabilities after 20
passages are compared with those of gpt.
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
KINDS: dict[str, dict[str, object]] = {
    "learned positions": {"model.positions": "learned", "model.activation": "gelu"},
    "rotary": {"model.ngram": 1, "model.qk_norm": False},
    "rotary, QK norm": {"model.ngram": 1, "model.attention_scale": 1.5},
    "rotary, QK norm, n-grams, key offset": {"model.key_offset": True},
    "an ensemble of these": {"model.key_offset": True, "model.ensemble": 2},
    "bytes": {"data.vocabulary": "bytes"},
}
READ = """
import importlib.util, json, sys
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

assert importlib.util.find_spec("gpt") is None
folder, passages = sys.argv[1], json.load(open(sys.argv[2]))
tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
worst = 0
for text, ids, expected in passages:
    assert tokenizer(text).input_ids == ids, text
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    found = logits.double().log_softmax(-1).tolist()
    worst = max(worst, max(abs(a - b) for a, b in zip(found, expected, strict=True)))
print(f"{len(passages)} texts, largest difference of a log-probability {worst:.1e}")
"""


def make_environment(folder: Path) -> Path:
    """Make a new environment in `folder`, with the same versions as here; return its Python."""
    venv.create(folder, with_pip=True)
    python = next(path for path in folder.glob("*/python*") if path.stem == "python")
    pinned = [f"{package}=={metadata.version(package)}" for package in ("torch", "transformers")]
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
    """Train, export and read each kind of model in `folder`; print a line for each."""
    python = make_environment(folder / "environment")
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    passages = folder / "passages.json"
    for i, (kind, changes) in enumerate(KINDS.items()):
        run, out = folder / f"run-{i}", folder / f"export-{i}"
        api.train(text=str(text), settings=SETTINGS | changes, run_dir=run)
        model = api.load(run)
        api.export(model, "huggingface", out)
        passages.write_text(json.dumps(passages_of(model, text.read_text("utf-8"))))
        done = subprocess.run(
            [python, "-I", "-c", READ, out, passages],
            env=offline,
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{kind}: {done.stderr}")
        print(f"{kind}: {done.stdout.splitlines()[-1]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(arguments.text, Path(temporary))
