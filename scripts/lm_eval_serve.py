#!/usr/bin/env python3
"""Score a small task with lm-evaluation-harness, as a client of `gpt serve`.

    gpt export my-run --to huggingface --out exported      # for its tokenizer
    gpt serve my-run --port 8000
    python scripts/lm_eval_serve.py my-run http://127.0.0.1:8000 exported TEXT

Run it in an environment that has `lm-eval[api]` and transformers. Each question is a passage of
the file TEXT, and asks which of four passages continues it. The scores must be those that the
server gives to a request without the harness.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import lm_eval
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask

QUESTIONS = 30
CONTEXT, CONTINUATION = 120, 16  # characters


def questions(text: str) -> list[dict[str, Any]]:
    """Return passages of `text` with four continuations, of which one is correct."""
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


def score(url: str, context: str, continuation: str) -> float:
    """Return the log-probability of `continuation` after `context`, without the harness."""
    fields = {"prompt": context + continuation, "max_tokens": 0, "echo": True, "logprobs": 0}
    with urllib.request.urlopen(f"{url}/v1/completions", json.dumps(fields).encode()) as response:
        logprobs: list[float] = json.load(response)["choices"][0]["logprobs"]["token_logprobs"]
    # the harness counts spaces at the end of a context as part of the continuation
    return sum(logprobs[len(context.rstrip()) :])


def main() -> None:
    """Print the accuracy, and the largest difference of a score."""
    name, url, tokenizer, text = sys.argv[1:5]
    asked = questions(Path(text).read_text("utf-8"))
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
        "model": name,
        "base_url": f"{url}/v1/completions",
        "tokenizer": tokenizer,
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
    accuracy = results["results"]["continuation"]["acc,none"]
    differences = [
        abs(float(response[0]) - score(url, sample["doc"]["context"], choice))
        for sample in results["samples"]["continuation"]
        for response, choice in zip(sample["filtered_resps"], sample["doc"]["choices"], strict=True)
    ]
    print(f"accuracy {accuracy:.2f} of {QUESTIONS} questions with 4 choices each")
    print(f"largest difference of {len(differences)} scores: {max(differences):.0e} nats")


if __name__ == "__main__":
    main()
