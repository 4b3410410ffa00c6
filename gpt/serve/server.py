"""Listen on a port, and serve a run until a signal arrives."""

import asyncio
import errno
import ipaddress
import logging
import math
import socket
from collections.abc import Callable

import uvicorn
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpt.errors import GPTError, UsageError
from gpt.serve.app import App
from gpt.serve.batch import Batch
from gpt.serve.refusal import Refusal
from gpt.serve.served_run import ServedRun

SHUTDOWN_S = 3  # seconds in which responses must end after a signal
MAX_CONNECTIONS = 512  # clients that are connected at once; requests of further ones are refused
HEAD_TIMEOUT_S = 10  # seconds from connecting, or the last response, to the end of a request's head
STALL_S = 60  # seconds after which a client that reads nothing is dropped
BUSY = JSONResponse(
    Refusal(429, "the server has too many connections; try again later").content,
    status_code=429,
    headers={"Retry-After": "1"},
)


class _Connection(H11Protocol):
    """Connection to a client. It is closed if the client sends or reads too slowly."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.is_excess = len(self.connections) > MAX_CONNECTIONS
        self.timeout_keep_alive_task = self.loop.call_later(
            HEAD_TIMEOUT_S, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        self.is_excess = self.is_excess and len(self.connections) > MAX_CONNECTIONS
        self.app = BUSY if self.is_excess else self.config.loaded_app
        # unlike H11Protocol's method, this one stops the timer only when the head is complete
        self.conn.receive_data(data)
        self.handle_events()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(math.inf)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watcher.cancel()

    def _watch(self, unread_before: float) -> None:
        """Drop the client if at least `unread_before` bytes are unread; else check again later."""
        unread = self.transport.get_write_buffer_size()
        if unread >= unread_before:
            self.transport.abort()
        else:
            self._watcher = self.loop.call_later(STALL_S, self._watch, unread)


class _Server(uvicorn.Server):
    """Server that ends running completions when it is stopped."""

    def __init__(self, config: uvicorn.Config, batch: Batch) -> None:
        super().__init__(config)
        self.batch = batch

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.batch.stop()
        await super().shutdown(sockets)


def serve(
    run: ServedRun, host: str, port: int, token: str | None, on_ready: Callable[[str], object]
) -> None:
    """Serve a run until SIGINT or SIGTERM arrives, then run that signal's previous handler.

    Args:
        run: the run.
        host: the address or name to listen on.
        port: the port to listen on; 0 for any that is free.
        token: the secret that each request must have; None if none is needed.
        on_ready: called with the URL of the server when it accepts connections.

    Raises:
        UsageError: `host` is not an address of this machine; or other machines can reach it, and
            there is no token.
        GPTError: the port cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host}: expected an address of this machine ({error})") from None
    only_local = ipaddress.ip_address(address[0]).is_loopback
    if not only_local and token is None:
        raise UsageError(
            f"--host {host}: other machines could use the model; set a secret by --token or in "
            f"the environment variable GPT_TOKEN, or leave --host out"
        )
    batch = Batch()
    config = uvicorn.Config(
        App(run, batch, token, only_local),
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=HEAD_TIMEOUT_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the application logs its errors
    try:
        listener = socket.create_server(address, family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"--host {host}: this machine has no such address") from None
        message = f"cannot listen on {host}, port {port}: {error.strerror}; try --port 8000"
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} is used by another program; choose another one by --port"
        raise GPTError(message) from None
    with listener:
        shown = f"[{host}]" if ":" in host else host
        on_ready(f"http://{shown}:{listener.getsockname()[1]}")
        _Server(config, batch).run(sockets=[listener])
