"""Serve a web application: OpenAI's API for completions, and the page that runs the model."""

import asyncio
import base64
import ipaddress
import json
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt.errors import GPTError, UsageError
from gpt.serve.completions import Completion, parse_request
from gpt.serve.served_model import MAX_TEXTS, ServedModel

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**20  # largest body of a request
PATHS = "/, /v1/models, /v1/models/NAME, or POST to /v1/completions"
STALL_S = 3  # a full server ends each stream that its client has not read for this many seconds
Answer = TypeVar("Answer")

SHUTDOWN_S = 3  # after a signal to stop, responses must end within this many seconds
MAX_CONNECTIONS = 256  # largest number of connected clients; requests of more clients are refused


class AccessCheck:
    """ASGI application that refuses requests from pages of other sites or without `token`.

    A page of another site could call this server from the user's browser. The browser then sends
    the site's address as `Origin`, which differs from `Host`. Programs send the token as
    `Authorization: Bearer TOKEN`, browsers as a password. Accepted requests go to `app`.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to `app`, or raise HTTPException to refuse it."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            message = f"the request came from a page of {origin:.100}"
            raise HTTPException(403, f"{message}; only pages of {host:.100} may send requests")
        if self.token is not None and not self._has_token(headers.get("authorization", "")):
            raise HTTPException(
                401,
                "expected the header Authorization: Bearer TOKEN, with the token of gpt serve",
                {"WWW-Authenticate": 'Basic realm="gpt serve: any name, and the token"'},
            )
        await self.app(scope, receive, send)

    def _has_token(self, authorization: str) -> bool:
        scheme, _, secret = authorization.partition(" ")
        sent = secret.encode() if scheme.lower() == "bearer" else b""
        if scheme.lower() == "basic":
            with suppress(ValueError):
                sent = base64.b64decode(secret).partition(b":")[2]
        return secrets.compare_digest(sent, (self.token or "").encode())


class App(Starlette):
    """Web application.

    One thread generates the texts of all requests: a short piece for one, then a piece for another.
    It never waits for a client that reads slowly.

    `hosts` are the names allowed in the header `Host`; `*` allows any. Without a check of `Host`,
    a site whose name resolves to this machine would pass AccessCheck, because its `Origin` equals
    `Host` (DNS rebinding). Requests need `token`, unless it is None.
    """

    def __init__(self, model: ServedModel, token: str | None, hosts: list[str]) -> None:
        self.model = model
        self._thread = ThreadPoolExecutor(1, "gpt serve")
        self._texts = 0  # number of texts being generated, or not yet read by their client
        self.sends: dict[asyncio.Timeout, float] = {}  # timeout and start of each send in progress
        self.should_stop: Callable[[], bool] = lambda: False
        routes = [
            Route("/", self.page),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model_of_name),
            Route("/v1/completions", self.completions, methods=["POST"]),
        ]
        check = Middleware(AccessCheck, token)
        handlers: Any = {HTTPException: _refused, Exception: _refused}
        super().__init__(
            routes=[Mount("/", routes=routes, middleware=[check])],
            middleware=[Middleware(TrustedHostMiddleware, hosts, www_redirect=False)],
            exception_handlers=handlers,
        )

    async def page(self, request: Request) -> Response:
        """Send the page that runs the model in the browser."""
        return HTMLResponse(await self.in_thread(lambda: self.model.page))

    async def models(self, request: Request) -> Response:
        """List the one model that is served."""
        return JSONResponse({"object": "list", "data": [self._description()]})

    async def model_of_name(self, request: Request) -> Response:
        """Describe the served model; raise HTTPException if the request names another model."""
        self._check_name(request.path_params["name"])
        return JSONResponse(self._description())

    def _description(self) -> dict[str, Any]:
        return {
            "id": self.model.name,
            "object": "model",
            "created": self.model.created,
            "owned_by": "gpt",
            "step": self.model.checkpoint.step,
            "val_loss": self.model.checkpoint.val_loss,
        }

    async def completions(self, request: Request) -> Response:
        """Continue or score the prompts of a request."""
        asked = parse_request(await _read_body(request))
        self._check_name(asked.model)
        completion = await self.in_thread(lambda: Completion(asked, self.model))
        if asked.stream:
            return EventStream(self, completion)
        with self.places(completion):
            while await self.advance(completion):
                if await request.is_disconnected():
                    raise HTTPException(499, "the client disconnected")
            choices = [choice.take() for choice in completion.choices]
            return JSONResponse(completion.head | {"choices": choices, "usage": completion.usage()})

    async def advance(self, completion: Completion) -> bool:
        """Generate the next piece of the texts; return whether to call `advance` again."""
        if self.should_stop():
            raise HTTPException(503, "the server is stopping")
        return await self.in_thread(completion.advance)

    async def in_thread(self, function: Callable[[], Answer]) -> Answer:
        """Call `function` in the only thread that uses the model; return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    @contextmanager
    def places(self, completion: Completion) -> Iterator[None]:
        """Reserve a place for each text of `completion`; there are MAX_TEXTS places in all.

        If too few are free, end all streams not read for STALL_S seconds, and raise HTTPException.
        """
        count = len(completion.choices)
        if self._texts + count > MAX_TEXTS:
            for limit, since in self.sends.items():
                limit.reschedule(since + STALL_S)
            message = f"the server is busy with {self._texts} texts; try again later"
            raise HTTPException(429, message, {"Retry-After": "1"})
        self._texts += count
        try:
            yield
        finally:
            self._texts -= count

    def _check_name(self, name: str | None) -> None:
        if name not in (None, self.model.name):
            raise HTTPException(404, f"model: expected {self.model.name}, got {name!r:.100}")


class EventStream(StreamingResponse):
    """Response that streams a completion.

    If another request finds no free place, a stream that is not read for STALL_S seconds ends.
    """

    def __init__(self, app: App, completion: Completion) -> None:
        self.app, self.completion = app, completion
        headers = {"Cache-Control": "no-cache"}
        super().__init__(self.events(), headers=headers, media_type="text/event-stream")

    async def events(self) -> AsyncIterator[str]:
        """Yield the response as server-sent events."""
        completion = self.completion
        with_usage = completion.request.stream_options.get("include_usage")
        end = {"usage": None} if with_usage else {}
        pending = completion.choices
        try:
            while pending:
                await self.app.advance(completion)
                news = [choice for choice in pending if choice.text or choice.finish_reason]
                pending = [choice for choice in pending if choice.finish_reason is None]
                events = [completion.head | {"choices": [each.take()]} | end for each in news]
                yield "".join(map(_event, events))
            if with_usage:
                yield _event(completion.head | {"choices": [], "usage": completion.usage()})
        except Exception as error:
            yield _event(error_content(error))
        yield "data: [DONE]\n\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(None) as limit:
                self.app.sends[limit] = asyncio.get_running_loop().time()
                try:
                    await send(message)
                finally:
                    del self.app.sends[limit]

        with self.app.places(self.completion):
            await super().__call__(scope, receive, send_in_time)


def _event(content: dict[str, Any]) -> str:
    # json.dumps writes only ASCII: some clients end a line at a character such as U+2028
    return f"data: {json.dumps(content)}\n\n"


def error_content(error: Exception) -> dict[str, Any]:
    """Return the JSON of an error, in OpenAI's format. Log unexpected errors."""
    if isinstance(error, HTTPException):
        is_server_error = error.status_code >= 500
        message, kind = error.detail, "server_error" if is_server_error else "invalid_request_error"
    elif isinstance(error, GPTError):
        message, kind = str(error), "server_error"
    else:
        log.error("internal error: %r", error, exc_info=log.isEnabledFor(logging.DEBUG) and error)
        message, kind = f"internal error: {type(error).__name__}", "server_error"
    return {"error": {"message": message, "type": kind}}


async def _read_body(request: Request) -> bytes:
    """Return the body of a request; raise HTTPException if it has more than MAX_BODY_BYTES.

    A body that is too large is read and discarded, because most clients read the response only
    after they have sent the whole body.
    """
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= MAX_BODY_BYTES:
            body += chunk
    if size > MAX_BODY_BYTES:
        message = f"the body has more than {MAX_BODY_BYTES:,} bytes; send a smaller one"
        raise HTTPException(413, message)
    return bytes(body)


async def _refused(request: Request, error: Exception) -> Response:
    """Answer a failed request with an error message in OpenAI's format."""
    if isinstance(error, ClientDisconnect):  # the client left before it had sent the body
        return Response(status_code=499)
    if isinstance(error, HTTPException) and error.detail == "Not Found":  # no route has the path
        error = HTTPException(404, f"{request.url.path:.100}: expected {PATHS}")
    if isinstance(error, HTTPException):
        return JSONResponse(error_content(error), error.status_code, error.headers)
    return JSONResponse(error_content(error), 500)


def serve(
    model: ServedModel, host: str, port: int, token: str | None, on_ready: Callable[[str], object]
) -> None:
    """Serve a model until SIGINT or SIGTERM arrives, then run that signal's previous handler.

    Port 0 means any free port. Requests need `token`, unless it is None. `on_ready` is called with
    the URL of the server when it accepts connections.

    Raises:
        UsageError: `host` is not an address, or other machines can reach it and `token` is None.
        GPTError: the address or port cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host}: expected an address of this machine ({error})") from None
    shown = f"[{host}]" if ":" in host else host
    hosts = ["localhost", "127.0.0.1", "[::1]", shown]
    if not ipaddress.ip_address(address[0]).is_loopback:
        if token is None:
            raise UsageError(
                f"--host {host}: other machines could use the model; set a secret by --token or in "
                f"the environment variable GPT_TOKEN, or leave --host out"
            )
        hosts = ["*"]
    app = App(model, token, hosts)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # `App` logs its own errors
    try:
        listener = socket.create_server(address, family=family)
    except OSError as error:
        message = f"cannot listen: {error.strerror}; choose another --host or --port"
        raise GPTError(message) from None
    with listener:
        on_ready(f"http://{shown}:{listener.getsockname()[1]}")
        server = uvicorn.Server(config)
        app.should_stop = lambda: server.should_exit
        server.run(sockets=[listener])
