"""The web application: OpenAI's API for completions, and the page of the model."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gpt.serve.batch import Batch
from gpt.serve.completion_request import parse_request
from gpt.serve.completions import Completion
from gpt.serve.guard import Guard, read_body
from gpt.serve.refusal import Refusal
from gpt.serve.served_run import ServedRun

log = logging.getLogger(__name__)


class EventStream(StreamingResponse):
    """Response that sends a completion while it is generated, and closes it in any case."""

    def __init__(self, completion: Completion) -> None:
        headers = {"Cache-Control": "no-cache"}
        super().__init__(completion.events(), headers=headers, media_type="text/event-stream")
        self.completion = completion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, until the end or until the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.completion.close()


class Endpoints:
    """The functions that answer requests.

    Args:
        run: the run that is served.
        batch: the thread that generates texts.
    """

    def __init__(self, run: ServedRun, batch: Batch) -> None:
        self.run, self.batch = run, batch

    async def page(self, request: Request) -> Response:
        """Send the page that runs the model in the browser."""
        model = await self.run.model()
        return HTMLResponse(await asyncio.to_thread(lambda: model.page))

    async def health(self, request: Request) -> Response:
        """Answer that the server is running."""
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """List the one model that is served."""
        checkpoint = (await self.run.model()).checkpoint
        model = {
            "id": self.run.name,
            "object": "model",
            "created": self.run.created,
            "owned_by": "gpt",
            "step": checkpoint.step,
            "val_loss": checkpoint.val_loss,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def completions(self, request: Request) -> Response:
        """Continue or score the prompts of a request."""
        asked = parse_request(await read_body(request))
        name = self.run.name
        if asked.model not in (None, name):
            message = f"model: expected {name}, got {asked.model!r:.100}"
            raise Refusal(404, message, param="model", code="model_not_found")
        completion = Completion(asked, await self.run.model(), name, self.batch)
        if asked.stream:
            return EventStream(completion)
        try:
            return JSONResponse(await _unless_disconnected(request, completion.response()))
        finally:
            completion.close()


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of `work`; cancel it if the client disconnects.

    Raises:
        ClientDisconnect: the client disconnected.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.create_task(work), asyncio.create_task(disconnected())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


async def _refused(request: Request, error: Exception) -> Response:
    """Answer a request that failed, with a message in OpenAI's format."""
    if isinstance(error, Refusal):
        return error.response()
    if isinstance(error, ClientDisconnect | TimeoutError):
        return Response(status_code=499)  # nobody reads it
    if isinstance(error, HTTPException):
        where = f"{request.method} {request.url.path:.100}"
        refusal = Refusal(error.status_code, f"{where}: {error.detail}", headers=error.headers)
        return refusal.response()
    log.error("internal error: %r", error, exc_info=log.isEnabledFor(logging.DEBUG) and error)
    return Refusal(500, f"internal error: {type(error).__name__}").response()


def make_app(run: ServedRun, batch: Batch, token: str | None, only_local: bool) -> ASGIApp:
    """Return the application.

    Args:
        run: the run that is served.
        batch: the thread that generates texts.
        token: the secret that each request must have; None if none is needed.
        only_local: whether only names of this machine are valid as `Host`.
    """
    endpoints = Endpoints(run, batch)
    routes = [
        Route("/", endpoints.page),
        Route("/health", endpoints.health),
        Route("/v1/models", endpoints.models),
        Route("/v1/completions", endpoints.completions, methods=["POST"]),
    ]
    kinds = (Refusal, ClientDisconnect, HTTPException, Exception)
    handlers: Any = dict.fromkeys(kinds, _refused)
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, only_local)
