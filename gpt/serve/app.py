"""Web application: OpenAI's API for completions, and the page that runs the model."""

import asyncio
from contextlib import closing
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, Router
from starlette.types import Receive, Scope, Send

from gpt.serve.batch import Batch
from gpt.serve.completion_request import parse_request
from gpt.serve.completions import Completion
from gpt.serve.guard import Guard, read_body
from gpt.serve.refusal import Refusal, refusal_of
from gpt.serve.served_run import ServedRun


class EventStream(StreamingResponse):
    """Response that streams a completion, then closes it, even if the client disconnects."""

    def __init__(self, completion: Completion) -> None:
        headers = {"Cache-Control": "no-cache"}
        super().__init__(completion.events(), headers=headers, media_type="text/event-stream")
        self.completion = completion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, until the end or until the client disconnects."""
        with closing(self.completion):
            await super().__call__(scope, receive, send)


class App(Starlette):
    """Web application.

    Args:
        run: the run to serve.
        batch: generates the texts of all requests.
        token: the secret that each request must contain; None if none is needed.
        only_local: whether the `Host` of a request must be a name of this machine.
    """

    def __init__(self, run: ServedRun, batch: Batch, token: str | None, only_local: bool) -> None:
        self.run, self.batch = run, batch
        routes = [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
        ]
        guard = Guard(Router(routes), token, only_local)
        handlers: Any = {HTTPException: _refused, Exception: _refused}
        super().__init__(routes=[Mount("/", guard)], exception_handlers=handlers)

    async def page(self, request: Request) -> Response:
        """Send the page that runs the model in the browser."""
        return HTMLResponse(await self.run.page())

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
        with closing(completion):
            answer = asyncio.ensure_future(completion.response())
            watch = asyncio.ensure_future(_disconnected(request))
            watch.add_done_callback(lambda _: answer.cancel())
            try:
                return JSONResponse(await answer)
            finally:
                watch.cancel()


async def _disconnected(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refused(request: Request, error: Exception) -> Response:
    """Answer a request that failed, with a message in OpenAI's format."""
    if isinstance(error, HTTPException) and not isinstance(error, Refusal):
        where = f"{request.method} {request.url.path:.100}"
        error = Refusal(error.status_code, f"{where}: {error.detail}", headers=error.headers)
    if isinstance(error, ClientDisconnect):
        error = Refusal(499, "the client disconnected")  # nobody reads this answer
    refusal = refusal_of(error)
    return JSONResponse(refusal.content, refusal.status_code, refusal.headers)
