"""Servers of a small model, and clients, for the tests of `gpt serve`."""

import json
import select
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.conftest import COMMAND, IN_A_TERMINAL, trained

WAIT_S = 120  # seconds after which a response counts as missing
LONG = 60_000  # tokens that no test waits for
Answer = tuple[int, Any, Message]


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


@pytest.fixture(name="run", scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("serve"))


@pytest.fixture(name="server", scope="module")
def shared_server(run: Path) -> Iterator[str]:
    with serving(run) as (url, _):
        yield url


@pytest.fixture(name="client")
def openai_client(server: str) -> Iterator[openai.OpenAI]:
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


def posting(url: str, fields: dict[str, Any]) -> socket.socket:
    """A client that has sent a request."""
    host, port = url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=WAIT_S)
    body = json.dumps(fields)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    client.sendall((head + body).encode())
    return client


def streaming(url: str, **fields: Any) -> socket.socket:
    """A client that has received the beginning of a stream, and reads no further."""
    client = posting(url, {"stream": True, "max_tokens": LONG} | fields)
    if (status := client.recv(12)) != b"HTTP/1.1 200":
        client.close()
        raise AssertionError(status)
    return client
