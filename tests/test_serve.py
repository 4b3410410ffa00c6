"""`gpt serve`: what clients of OpenAI's API get, and how the server starts and ends."""

import base64
import json
import re
import shlex
import signal
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai

import gpt
from gpt.sampling.stopping import collect
from tests.conftest import PANGRAM, small
from tests.serving import (  # noqa: F401
    LONG,
    WAIT_S,
    ask,
    openai_client,
    posting,
    serving,
    shared_server,
    streaming,
    text_of,
    trained_run,
)

PLAIN: dict[str, float | None] = {"temperature": 1.0}


def test_a_seed_gives_the_text_of_gpt_sample(run, client):
    prompts, model = ["the ", PANGRAM, ""], gpt.load(run, device="cpu")
    rules: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9}
    answer = client.completions.create(
        model="run", prompt=prompts, n=2, max_tokens=31, seed=7, **rules
    )
    chunks = model.sample(prompts, num_samples=2, length=31, seed=7, rules=rules)
    expected = [sample.text for sample in collect(chunks, ["."] * 6)]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [*range(6)]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("".join(prompts))
    assert answer.usage.completion_tokens == 6 * 31


def test_a_stream_is_the_text_in_parts(client):
    fields: dict[str, Any] = {
        "model": "run", "prompt": ["the ", "a"], "n": 2, "seed": 5, "max_tokens": 23, "logprobs": 1,
        "echo": True, "stop": ["q", "zy"],
    }  # fmt: skip
    whole = client.completions.create(**fields)
    options = {"include_usage": True}
    parts = list(client.completions.create(**fields, stream=True, stream_options=options))
    assert parts[-1].usage == whole.usage
    assert all(part.usage is None for part in parts[:-1])
    for choice in whole.choices:
        mine = [c for part in parts for c in part.choices if c.index == choice.index]
        assert "".join(c.text for c in mine) == choice.text
        assert [c.finish_reason for c in mine][-1] == choice.finish_reason
        tokens = [token for c in mine if c.logprobs for token in c.logprobs.tokens or ()]
        assert choice.logprobs is not None
        assert "".join(tokens) == choice.text
        assert choice.logprobs.tokens == tokens
        offsets = [i for c in mine if c.logprobs for i in c.logprobs.text_offset or ()]
        assert offsets == choice.logprobs.text_offset == [*range(len(choice.text))]


def test_biases_are_added_to_logits_and_stops_are_normalised(run, server):
    """Bugs: `stop` kept the line ends of Windows, and neutral fields of clients were refused."""
    names = gpt.load(run).vocabulary.characters
    newline, letter = names.index("\n"), names.index("o")
    neutral = {"prompt": "the ", "max_tokens": 5, "best_of": 1, "frequency_penalty": 0}
    _, answer, _ = ask(server, neutral | {"logit_bias": {str(letter): 100}})
    assert answer["choices"][0]["text"] == "ooooo"
    _, answer, _ = ask(server, neutral | {"logit_bias": {str(newline): 100}, "stop": "\r\n"})
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "stop")


def test_a_stop_string_ends_a_text_and_is_not_part_of_it(server):
    whole = text_of(server, prompt="the ", seed=2, max_tokens=97)
    stop = whole[40:43]
    _, answer, _ = ask(
        server, {"prompt": "the ", "seed": 2, "max_tokens": 97, "stop": [stop, "?"], "logprobs": 0}
    )
    choice = answer["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_scores_of_a_text_are_those_with_which_it_was_generated(client):
    """Greedy, so that each token is also the most likely one; of 3 windows of T = 13."""
    fields: dict[str, Any] = {"model": "run", "logprobs": 2, "temperature": 0, "max_tokens": 39}
    drawn = client.completions.create(prompt="t", **fields).choices[0]
    scores = client.completions.create(
        prompt="t" + drawn.text, **(fields | {"max_tokens": 0, "echo": True})
    ).choices[0]
    assert scores.text == "t" + drawn.text
    assert (scores.finish_reason, scores.logprobs is None) == ("length", False)
    assert scores.logprobs is not None and drawn.logprobs is not None
    assert scores.logprobs.token_logprobs is not None and scores.logprobs.top_logprobs is not None
    assert scores.logprobs.token_logprobs[0] is scores.logprobs.top_logprobs[0] is None
    logs = scores.logprobs.token_logprobs[1:]
    np.testing.assert_allclose(logs, drawn.logprobs.token_logprobs, atol=1e-4)
    for log_p, likely in zip(logs, scores.logprobs.top_logprobs[1:], strict=True):
        assert len(likely) == 2
        assert max(likely.values()) == log_p  # what evaluation harnesses take for greedy


def test_texts_of_29_simultaneous_clients_are_as_if_alone(run, server):
    model = gpt.load(run, device="cpu")
    prompts = [f"{PANGRAM[i : i + 1 + i % 17]}" for i in range(29)]

    def expected(i: int) -> str:
        return "".join(model.generate(prompts[i], length=7 + i % 31, seed=i, rules=PLAIN))

    def served(i: int) -> str:
        return text_of(server, prompt=prompts[i], max_tokens=7 + i % 31, seed=i)

    with ThreadPoolExecutor(29) as clients:
        assert list(clients.map(served, range(29))) == list(map(expected, range(29)))


def test_bytes_of_a_character_are_sent_together(tmp_path):
    """Tokens of a byte model are bytes: one is sent with the character that it completes.

    A bug: streams had characters, such as U+2028, at which clients that split lines split JSON.
    """
    text = tmp_path / "text.txt"
    text.write_text("ありがとう。" * 97, "utf-8")
    config = small(data__vocabulary="bytes", train__steps=199, train__learning_rate=2e-2)
    outcome = gpt.train(config, text=str(text), run_dir=tmp_path / "run")
    prompt = [*"ありが".encode()][:-1]  # without the last byte of a character
    with serving(Path(outcome.run)) as (url, _):
        fields = {"prompt": prompt, "temperature": 0, "max_tokens": 12, "logprobs": 0}
        status, answer, _ = ask(url, fields)
        choice = answer["choices"][0]
        assert (status, choice["text"]) == (200, "がとう。"[:4])
        assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4]
        assert text_of(url, prompt="あり", max_tokens=0, echo=True, logprobs=0) == "あり"
        body = json.dumps(fields | {"stream": True}).encode()
        with urllib.request.urlopen(f"{url}/v1/completions", body, WAIT_S) as response:
            stream = response.read()
        assert (stream.isascii(), json.dumps("が")[1:-1].encode() in stream) == (True, True)


def test_the_page_is_that_of_gpt_export(run, server):
    with urllib.request.urlopen(server, timeout=WAIT_S) as response:
        page = response.read().decode()
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    header = re.search('id="header">(.*?)</script>', page, re.DOTALL)
    assert header is not None
    values = json.loads(header[1])
    assert (values["title"], values["step"]) == ("run", gpt.load(run).step)


def test_the_printed_example_works(run):
    """A bug: it continued "Once", also with a model that has no O."""
    with serving(run) as (url, process):
        assert process.stdout is not None
        command, address, body = process.stdout.readline().split(maxsplit=2)
        assert (command, address) == ("curl", f"{url}/v1/completions")
        assert len(text_of(url, **json.loads(shlex.split(body)[1]))) == 200


def test_a_token_is_needed_until_a_signal(run, capfd):
    with serving(run, "--token", "s3cret") as (url, process):
        basic = "Basic " + base64.b64encode(b"me:s3cret").decode()
        for wrong in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Basic !"}):
            for path, body in (("/v1/models", None), ("/v1/completions", {"prompt": "a"})):
                assert ask(url, body, path, **wrong)[0] == 401
        assert ask(url, path="/v1/models", Authorization=basic)[0] == 200
        with openai.OpenAI(base_url=f"{url}/v1", api_key="s3cret", timeout=WAIT_S) as client:
            assert [model.id for model in client.models.list()] == ["run"]
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 128 + signal.SIGINT
    assert "stopped at once" not in capfd.readouterr().err  # a bug: nothing was cut off


def test_a_signal_ends_running_requests_with_a_message(run):
    """Bug: requests got the status 500, and streams were cut without [DONE]."""
    fields = {"max_tokens": LONG}
    with serving(run) as (url, process), streaming(url) as stream, posting(url, fields) as whole:
        assert len(text_of(url, max_tokens=9)) == 9  # the long texts have begun
        process.send_signal(signal.SIGTERM)
        answers = [client.makefile("rb").read() for client in (stream, whole)]
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM
    error = b'{"error": {"message": "the server is stopping", "type": "server_error"}}'
    assert answers[0].count(b"data: " + error + b"\n\n") == 1
    assert b"data: [DONE]\n\n" in answers[0]
    assert answers[1].startswith(b"HTTP/1.1 503")
    assert error.replace(b": ", b":").replace(b", ", b",") in answers[1]


def test_an_occupied_port_and_an_open_door_are_refused(run, gpt):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, out, err = gpt("serve", run, "--port", port, "--device", "cpu")
    assert (code, out) == (1, "")
    assert "Address already in use" in err and f"{port}" in err and "choose another" in err
    code, _, err = gpt("serve", run, "--host", "0.0.0.0", "--port", "0", "--device", "cpu")
    assert (code, "set a secret by --token" in err) == (2, True)
    code, _, err = gpt("serve", run, "--host", "no.such.host.invalid", "--device", "cpu")
    assert (code, "--host no.such.host.invalid: expected an address" in err) == (2, True)
