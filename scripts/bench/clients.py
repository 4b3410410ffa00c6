"""Other programs that read exports, or ask `gpt serve`."""

import json
import os
import subprocess
import tempfile
import urllib.request
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.frame import SMALL, text_or_tinyshakespeare
from gpt import api

PASSAGES = 20
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
print(worst)
"""
QUESTIONS = 30
CONTEXT, CONTINUATION = 120, 16  # characters of a question


def transformers(text: Path | None = None) -> dict[str, str]:
    """Return the largest difference of a log-probability that transformers computes, by model.

    A new environment has only torch and transformers, no network, and cannot import gpt. It reads
    exports of small models trained on `text`, which has at least 20,000 characters.
    """
    path, found = text_or_tinyshakespeare(text), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = _make_environment(folder / "environment")
        offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
        passages = folder / "passages.json"
        for i, (kind, changes) in enumerate(KINDS.items()):
            run, out = folder / f"run-{i}", folder / f"export-{i}"
            api.train(text=str(path), settings=SMALL | changes, run_dir=run)
            model = api.load(run)
            api.export(model, "huggingface", out)
            passages.write_text(json.dumps(_passages(model, path.read_text("utf-8"))))
            command = [str(python), "-I", "-c", READ, str(out), str(passages)]
            done = subprocess.run(command, env=offline, cwd=folder, check=True, capture_output=True)
            found[kind] = f"{float(done.stdout.split()[-1]):.1e}"
    return found


def _make_environment(folder: Path) -> Path:
    """Make a new environment in `folder`, with the same versions as here; return its Python."""
    venv.create(folder, with_pip=True)
    python = next(path for path in folder.glob("*/python*") if path.stem == "python")
    pinned = [f"{package}=={metadata.version(package)}" for package in ("torch", "transformers")]
    subprocess.run([python, "-m", "pip", "install", "-q", *pinned], check=True)
    return python


def _passages(model: api.Model, text: str) -> list[tuple[str, list[int], list[float]]]:
    """Return passages of `text`, their ids, and the log-probabilities (V,) of the next id."""
    passages = []
    for i in range(PASSAGES):
        passage = text[1000 * i : 1000 * i + 3 * i + 1]
        ids = model.vocabulary.encode(passage).tolist()
        passages.append((passage, ids, model.logits(passage)[-1].double().log_softmax(-1).tolist()))
    return passages


def lm_eval(run: Path, url: str, tokenizer: Path, text: Path) -> dict[str, float]:
    """Score a small task with lm-evaluation-harness as a client of `gpt serve RUN` at `url`.

    Run it in an environment that has `lm-eval[api]` and transformers. The tokenizer is that of
    `gpt export RUN --to huggingface`. Each question is a passage of `text`, and asks which of four
    passages continues it. The scores must be those of a request without the harness.
    """
    import lm_eval
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    asked = _questions(text.read_text("utf-8"))
    config = {
        "task": "continuation",
        "custom_dataset": lambda **_: {"test": Dataset.from_list(asked)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    arguments = {
        "model": run.name,
        "base_url": f"{url}/v1/completions",
        "tokenizer": str(tokenizer),
        "tokenizer_backend": "huggingface",
        "batch_size": 8,
    }
    results = lm_eval.simple_evaluate(
        "local-completions",
        model_args=arguments,
        tasks=[ConfigurableTask(config=config)],
        bootstrap_iters=0,
        log_samples=True,
    )
    differences = [
        abs(float(response[0]) - _score(url, sample["doc"]["context"], choice))
        for sample in results["samples"]["continuation"]
        for response, choice in zip(sample["filtered_resps"], sample["doc"]["choices"], strict=True)
    ]
    accuracy = results["results"]["continuation"]["acc,none"]
    return {"accuracy": accuracy, "scores": len(differences), "difference": max(differences)}


def _questions(text: str) -> list[dict[str, Any]]:
    """Return passages of `text` with four continuations, of which the first is correct."""
    starts = [i * (len(text) - CONTEXT - CONTINUATION) // QUESTIONS for i in range(QUESTIONS)]
    ends = [text[start + CONTEXT :][:CONTINUATION] for start in starts]
    return [
        {
            "context": text[start:][:CONTEXT],
            "choices": [ends[(i + k) % QUESTIONS] for k in range(4)],
            "answer": 0,
        }
        for i, start in enumerate(starts)
    ]


def _score(url: str, context: str, continuation: str) -> float:
    """Return the log-probability of `continuation` after `context`, without the harness."""
    fields = {"prompt": context + continuation, "max_tokens": 0, "echo": True, "logprobs": 0}
    with urllib.request.urlopen(f"{url}/v1/completions", json.dumps(fields).encode()) as response:
        logprobs: list[float] = json.load(response)["choices"][0]["logprobs"]["token_logprobs"]
    # the harness counts spaces at the end of a context as part of the continuation
    return sum(logprobs[len(context.rstrip()) :])
