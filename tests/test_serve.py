"""`gpt serve`: what clients of OpenAI's API, browsers and attackers get."""

import asyncio
import base64
import json
import re
import select
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import gpt
from gpt.runs.format import TrainingState
from gpt.runs.write import write_checkpoint
from gpt.sampling.stopping import collect
from gpt.serve.served_run import ServedRun
from tests.conftest import COMMAND, IN_A_TERMINAL, PANGRAM, small

WAIT_S = 120  # what takes longer hangs
LONG = 60_000  # tokens that no test waits for
PLAIN: dict[str, float | None] = {"temperature": 1.0}
Answer = tuple[int, Any, Message]


def trained(folder: Path, **changes: Any) -> Path:
    text = folder / "pangram.txt"
    text.write_text(PANGRAM * 29, "utf-8")
    outcome = gpt.train(small(**changes), text=str(text), run_dir=folder / "run")
    return Path(outcome.run)


@contextmanager
def serving(run: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process of `gpt serve`."""
    command = [*IN_A_TERMINAL, *COMMAND, "serve", str(run), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(
        [*command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], WAIT_S)[0], "it hangs"
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("serve"), model__counts=3)


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[str]:
    """The address of a server that all tests share."""
    with serving(run) as (url, _):
        yield url


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=WAIT_S
    ) as client:
        yield client


def ask(url: str, body: Any = None, path: str = "/v1/completions", **headers: str) -> Answer:
    """Send a request; return the status, the JSON and the headers of the response."""
    content = json.dumps(body).encode() if isinstance(body, dict | list) else body
    request = urllib.request.Request(url + path, content, headers)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return response.status, json.load(response), response.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers


def text_of(url: str, **fields: Any) -> str:
    status, answer, _ = ask(url, fields)
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def streaming(url: str, **fields: Any) -> socket.socket:
    """A client that has received the beginning of a stream, and reads no further."""
    client, body = connected(url), json.dumps({"stream": True, "max_tokens": LONG} | fields)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    client.sendall((head + body).encode())
    if (status := client.recv(12)) != b"HTTP/1.1 200":
        client.close()
        raise AssertionError(status)
    return client


# --- completions ---


def test_a_seed_gives_the_text_of_gpt_sample(run: Path, client: openai.OpenAI) -> None:
    prompts, model = ["the ", "quick", ""], gpt.load(run, device="cpu")
    rules: dict[str, Any] = {"temperature": 0.7, "presence_penalty": 0.3, "top_p": 0.9}
    answer = client.completions.create(
        model="run", prompt=prompts, n=2, max_tokens=31, seed=7, **rules
    )
    chunks = model.sample(prompts, num_samples=2, length=31, seed=7, rules=rules)
    expected = [sample.text for sample in collect(chunks, ["."] * 6)]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [*range(6)]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (9, 6 * 31)


def test_ids_are_a_prompt(run: Path, client: openai.OpenAI) -> None:
    ids = [gpt.load(run).vocabulary.encode(text).tolist() for text in ("the ", "dog")]
    both = client.completions.create(model="run", prompt=ids, seed=3, echo=True)
    one = client.completions.create(model="run", prompt=ids[1], seed=3, echo=True)
    assert [choice.text[:3] for choice in both.choices] == ["the", "dog"]
    assert one.choices[0].text == both.choices[1].text


def test_a_stream_is_the_text_in_parts(client: openai.OpenAI) -> None:
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


def test_a_stop_string_ends_a_text_and_is_not_part_of_it(server: str) -> None:
    whole = text_of(server, prompt="the ", seed=2, max_tokens=97)
    stop = whole[40:43]
    _, answer, _ = ask(
        server, {"prompt": "the ", "seed": 2, "max_tokens": 97, "stop": [stop, "?"], "logprobs": 0}
    )
    choice = answer["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_scores_of_a_text_are_those_with_which_it_was_generated(client: openai.OpenAI) -> None:
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


def test_texts_of_50_simultaneous_clients_are_as_if_alone(run: Path, server: str) -> None:
    model = gpt.load(run, device="cpu")
    prompts = [f"{PANGRAM[i : i + 1 + i % 17]}" for i in range(50)]

    def expected(i: int) -> str:
        return "".join(model.generate(prompts[i], length=7 + i % 31, seed=i, rules=PLAIN))

    def served(i: int) -> str:
        return text_of(server, prompt=prompts[i], max_tokens=7 + i % 31, seed=i)

    with ThreadPoolExecutor(50) as clients:
        assert list(clients.map(served, range(50))) == list(map(expected, range(50)))


def test_bytes_of_a_character_are_sent_together(tmp_path: Path) -> None:
    """Tokens of a byte model are bytes: one is sent with the character that it completes."""
    text = tmp_path / "text.txt"
    text.write_text("ありがとう。" * 97, "utf-8")
    config = small(data__vocabulary="bytes", model__counts=5, train__steps=3)
    outcome = gpt.train(config, text=str(text), run_dir=tmp_path / "run")
    prompt = [*"ありが".encode()][:-1]  # without the last byte of a character
    with serving(Path(outcome.run)) as (url, _):
        fields = {"prompt": prompt, "temperature": 0, "max_tokens": 12, "logprobs": 0}
        status, answer, _ = ask(url, fields)
        choice = answer["choices"][0]
        assert (status, choice["text"]) == (200, "がとう。"[:4])
        assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4]
        assert text_of(url, prompt="あり", max_tokens=0, echo=True, logprobs=0) == "あり"


def test_the_page_is_that_of_gpt_export(run: Path, server: str) -> None:
    with urllib.request.urlopen(server, timeout=WAIT_S) as response:
        page = response.read().decode()
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    header = re.search('id="header">(.*?)</script>', page, re.DOTALL)
    assert header is not None
    values = json.loads(header[1])
    assert (values["title"], values["step"]) == ("run", gpt.load(run).step)


def test_the_printed_example_works(run: Path) -> None:
    """A bug: it continued "Once", also with a model that has no O."""
    with serving(run) as (url, process):
        assert process.stdout is not None
        command, address, body = process.stdout.readline().split(maxsplit=2)
        assert (command, address) == ("curl", f"{url}/v1/completions")
        assert len(text_of(url, **json.loads(shlex.split(body)[1]))) == 200


def test_a_checkpoint_written_while_the_server_starts_is_served(run: Path) -> None:
    """A bug: it was missed if it was written after the first one was read."""
    data = gpt.load(run, device="cpu").checkpoint
    weights = {name: weight * 2 for name, weight in data.weights.items()}
    old = replace(data, step=data.step - 1, weights=weights, weights_sha256="")
    served = ServedRun(run, "best", "cpu", old)
    assert asyncio.run(served.model()).checkpoint.step == data.step


# --- wrong requests ---


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        (b'{"prompt": ', 400, "expected a JSON object"),
        (b"\xff\xfe", 400, "expected a JSON object"),
        (b"[" * 100_000, 400, "expected a JSON object"),
        ([1], 400, "expected"),
        ({"promt": "a"}, 400, "promt: no such field"),
        ({"max_tokens": -1}, 400, "max_tokens: expected greater than or equal to 0"),
        ({"max_tokens": "3"}, 400, "max_tokens: expected a valid integer"),
        ({"temperature": -0.1}, 400, "temperature: expected greater"),
        ({"n": 300}, 400, "at most 256 texts"),
        ({"n": 100, "max_tokens": 60_000}, 400, "at most 262,144 tokens"),
        ({"n": 10**9, "max_tokens": 0}, 400, "at most 256 texts"),
        ({"prompt": "a" * 900_000, "echo": True, "max_tokens": 0}, 400, "at most 262,144 tokens"),
        ({"prompt": "a" * 9000, "n": 90, "echo": True}, 400, "at most 262,144 tokens"),
        ({"stop": 3}, 400, "stop: expected a text or a list of at most 16 texts"),
        ({"suffix": "!"}, 400, "suffix: no such field"),
        ({"prompt": "€"}, 400, "outside the model's vocabulary: €"),
        ({"prompt": [0, 99]}, 400, "expected ids from 0 to"),
        ({"prompt": []}, 400, "expected a text, a list of ids"),
        ({"prompt": [True]}, 400, "prompt: expected a text, a list of ids"),
        ({"model": "gpt-3.5-turbo-instruct"}, 404, "model: expected run"),
    ],
)
def test_a_wrong_request_gets_one_message(
    server: str, fields: Any, status: int, message: str
) -> None:
    """A bug: a small request for 10**9 texts, or for long echoes, took all memory and time."""
    got, answer, _ = ask(server, fields)
    assert (got, message in answer["error"]["message"]) == (status, True), answer
    assert answer["error"]["type"] == "invalid_request_error"


def test_the_openai_package_raises_its_errors(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["run"]
    with pytest.raises(openai.BadRequestError, match="no such field"):
        client.completions.create(model="run", prompt="a", extra_body={"repetition_penalty": 2})
    with pytest.raises(openai.NotFoundError, match="expected run"):
        client.completions.create(model="davinci", prompt="a")
    with pytest.raises(openai.NotFoundError, match="POST /v1/chat/completions"):
        client.chat.completions.create(model="run", messages=[{"role": "user", "content": "a"}])


def test_other_sites_are_refused(server: str) -> None:
    """By Origin; and by Host if their name refers to this machine (DNS rebinding)."""
    address = server.removeprefix("http://")
    port = address.partition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", "192.168.0.7", "localhost.evil.example"):
        for path in ("/health", "/v1/models"):
            assert ask(server, path=path, Host=host)[0] == 403
    for origin in ("http://evil.example", "null", "http://localhost:1", f"file://{address}x"):
        assert ask(server, {"prompt": "a"}, Origin=origin)[0] == 403
    for host in (address, f"localhost:{port}", f"[::1]:{port}"):
        assert ask(server, {"prompt": "a"}, Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_of_10_mb_is_refused(server: str, is_chunked: bool) -> None:
    large = b'{"prompt": "' + b"a" * 10_000_000 + b'"}'
    chunks = (large[i : i + 2**16] for i in range(0, len(large), 2**16))
    status, answer, _ = ask(server, chunks if is_chunked else large)
    assert (status, "1,048,576 bytes" in answer["error"]["message"]) == (413, True)


# --- clients that misbehave ---


def test_a_full_queue_says_so_and_clients_that_disconnect_free_their_places(server: str) -> None:
    """8 clients with 32 texts each fill it."""
    with ExitStack() as clients:
        for _ in range(8):
            clients.enter_context(streaming(server, n=32, max_tokens=8000))
        status, answer, headers = ask(server, {"prompt": "a"})
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(headers["Retry-After"]) > 0
    deadline = time.monotonic() + WAIT_S
    while ask(server, {"prompt": "a"})[0] == 429:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_does_not_read_blocks_no_other(server: str) -> None:
    with streaming(server, n=3):
        for seed in range(3):
            assert len(text_of(server, prompt="the ", max_tokens=101, seed=seed)) == 101


def test_a_client_that_waits_for_the_whole_text_can_disconnect(server: str) -> None:
    body = json.dumps({"n": 200, "max_tokens": 1000})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with connected(server) as client:
        client.sendall((head + body).encode())
        while ask(server, {"n": 100, "max_tokens": 0})[0] == 200:
            pass  # until that request has its places
    deadline = time.monotonic() + WAIT_S
    while ask(server, {"n": 100, "max_tokens": 0})[0] == 429:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- the process ---


def test_a_run_in_training_is_served_with_its_token_until_a_signal(tmp_path: Path) -> None:
    """A new checkpoint answers new requests; a text that was begun keeps its model."""
    run = trained(tmp_path)
    data = gpt.load(run, device="cpu").checkpoint
    step = data.step + 1
    others = {name: weight * 1.5 for name, weight in data.weights.items()}
    with serving(run, "--token", "s3cret", "--checkpoint", "last") as (url, process):
        basic = "Basic " + base64.b64encode(b"me:s3cret").decode()
        for wrong in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Basic !"}):
            for path, body in (("/v1/models", None), ("/v1/completions", {"prompt": "a"})):
                status, answer, _ = ask(url, body, path, **wrong)
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert ask(url, path="/v1/models", Authorization=basic)[0] == 200

        with openai.OpenAI(base_url=f"{url}/v1", api_key="s3cret", timeout=WAIT_S) as client:
            stream = client.completions.create(
                model="run", prompt="a", stream=True, max_tokens=LONG
            )
            old = next(iter(stream)).system_fingerprint
            write_checkpoint(run, replace(data, step=step, weights=others), TrainingState({}, {}))
            logits = gpt.load(run, "last").logits("the quick").double()
            scores = client.completions.create(
                model="run", prompt="the quick", max_tokens=0, echo=True, logprobs=0
            )
            assert scores.system_fingerprint == f"step-{step}" != old
            assert next(iter(stream)).system_fingerprint == old
            ids = data.vocabulary.encode("the quick").tolist()
            logs = logits.log_softmax(-1)[range(8), ids[1:]]
            assert scores.choices[0].logprobs is not None
            found = scores.choices[0].logprobs.token_logprobs
            assert found is not None
            np.testing.assert_allclose(found[1:], logs, atol=1e-4)
            stream.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 128 + signal.SIGINT


def test_sigterm_ends_a_stream_with_a_message(run: Path) -> None:
    with serving(run) as (url, process), streaming(url) as client:
        process.send_signal(signal.SIGTERM)
        received = b""
        with suppress(ConnectionError):
            while part := client.recv(2**16):
                received += part
        assert b"the server is stopping" in received
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM


def test_an_occupied_port_and_an_open_door_are_refused(
    run: Path, gpt: Callable[..., tuple[int, str, str]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, out, err = gpt("serve", run, "--port", port, "--device", "cpu")
    assert (code, out) == (1, "")
    assert err == f"gpt: port {port} is used by another program; choose another one by --port\n"
    code, _, err = gpt("serve", run, "--host", "0.0.0.0", "--port", "0", "--device", "cpu")
    assert (code, "set a secret by --token" in err) == (2, True)
    code, _, err = gpt("serve", run, "--host", "no.such.host.invalid", "--device", "cpu")
    assert (code, "--host no.such.host.invalid: expected an address" in err) == (2, True)
