"""`gpt serve`: what clients get that make mistakes, are in the way, or attack."""

import http.client
import json
import socket
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

import gpt
from gpt.serve.batch import Batch
from gpt.serve.completion_request import parse_request
from gpt.serve.completions import Completion
from gpt.serve.refusal import Refusal
from gpt.serve.served_run import ServedModel
from tests.serving import (  # noqa: F401
    WAIT_S,
    ask,
    connected,
    openai_client,
    posting,
    serving,
    shared_server,
    streaming,
    text_of,
    trained_run,
)

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
    with posting(server, {"n": 200, "max_tokens": 1000}):
        while ask(server, {"n": 100, "max_tokens": 0})[0] == 200:
            pass  # until that request has its places
    deadline = time.monotonic() + WAIT_S
    while ask(server, {"n": 100, "max_tokens": 0})[0] == 429:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def impatient(run: Path) -> Iterator[str]:
    """The address of a server that waits for 3 s, and that has 5 connections."""
    limits = "server.HEAD_TIMEOUT_S = server.STALL_S = guard.BODY_TIMEOUT_S = 3"
    program = (
        f"from gpt.serve import guard, server; {limits}; server.MAX_CONNECTIONS = 5\n"
        "from gpt.__main__ import main; main()"
    )
    with serving(run, program=(sys.executable, "-c", program)) as (url, _):
        yield url


def received(client: socket.socket, drip: bytes, is_reading: bool = True) -> bytes:
    """Send `drip` slowly; return what the server sends before it closes the connection."""
    parts = [b"nothing yet"]
    client.settimeout(0.1)
    for _ in range(10 * WAIT_S):
        try:
            client.send(drip)
            if not is_reading:
                time.sleep(0.1)
            elif part := client.recv(2**16):
                parts.append(part)
            else:
                break
        except TimeoutError:
            pass
        except ConnectionError:
            break
    else:
        pytest.fail("it is still connected")
    return b"".join(parts[1:])


def test_clients_that_send_or_read_too_slowly_are_dropped(impatient: str) -> None:
    """A bug: they kept their connections for ever."""
    post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n"
    get = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    beginnings = [b"", post, post + b"\r\n", get * 97]
    with ExitStack() as stack, ThreadPoolExecutor(4) as threads:
        clients = [stack.enter_context(connected(impatient)) for _ in beginnings]
        for client, beginning in zip(clients, beginnings, strict=True):
            client.sendall(beginning)
        drips, reads = [b"", b"a", b"a", b"a"], [True, True, True, False]
        silent, head, body, _ = threads.map(received, clients, drips, reads)
    assert silent == head == b""
    assert body.startswith(b"HTTP/1.1 408")
    assert b"expected the whole body within 3 s" in body


def test_further_clients_are_refused_until_others_leave(impatient: str) -> None:
    """A bug: 1,000 connections took all file descriptors."""
    client = http.client.HTTPConnection(impatient.removeprefix("http://"), timeout=WAIT_S)

    def status() -> int:
        client.request("GET", "/health")
        with client.getresponse() as response:
            response.read()
            return response.status

    with closing(client):
        with ExitStack() as others:
            for _ in range(5):
                others.enter_context(connected(impatient))
            assert status() == 429
        deadline = time.monotonic() + WAIT_S
        while status() == 429:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_prompt_that_takes_minutes_to_normalise_is_refused(run: Path) -> None:
    """A bug: 500,000 combining characters kept the server busy for minutes."""
    checkpoint = gpt.load(run, device="cpu").checkpoint
    config = checkpoint.config.changed(data={"normalize": "NFC"})
    model = ServedModel(replace(checkpoint, config=config), "cpu")
    with pytest.raises(Refusal, match="at most 100 combining characters in a row, got 202"):
        model.encode("the " + "\u0301" * 101 + "\u0323" * 101 + " quick")


@pytest.fixture
def traced_memory() -> Iterator[Callable[[], tuple[int, int]]]:
    """A function that returns the bytes that Python has allocated since, and the peak."""
    tracemalloc.start()
    yield tracemalloc.get_traced_memory
    tracemalloc.stop()


def test_the_mistakes_of_a_long_prompt_are_not_collected(
    traced_memory: Callable[[], tuple[int, int]],
) -> None:
    """A bug: a message about the first of 100,000 wrong items took 130 MB."""
    with pytest.raises(Refusal, match="expected a text, a list of ids"):
        parse_request(json.dumps({"prompt": [1] * 99_999 + ["a"]}).encode())
    assert traced_memory()[1] < 2**24


def test_a_long_prompt_takes_no_memory_while_it_waits(
    run: Path, traced_memory: Callable[[], tuple[int, int]]
) -> None:
    """A bug: a full queue of prompts of 1 MB took 2.4 GB."""
    model = ServedModel(gpt.load(run, device="cpu").checkpoint, "cpu")
    model.encode("a")  # fills the caches of the vocabulary
    before, _ = traced_memory()
    request = parse_request(json.dumps({"prompt": "the quick " * 90_000}).encode())
    with closing(Completion(request, model, "run", Batch())):
        assert traced_memory()[0] - before < 2**17
