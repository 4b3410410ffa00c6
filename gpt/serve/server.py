"""Listen on a port, and serve a run until a signal arrives."""

import errno
import ipaddress
import logging
import socket
from collections.abc import Callable

import uvicorn

from gpt.errors import GPTError, UsageError
from gpt.serve.app import App
from gpt.serve.batch import Batch
from gpt.serve.served_run import ServedRun

SHUTDOWN_S = 3  # seconds in which responses must end after a signal


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
    """Serve a run until SIGINT or SIGTERM, whose handler is called at the end.

    Args:
        run: the run.
        host: the address or name to listen on.
        port: the port to listen on; 0 for any that is free.
        token: the secret that each request must have; None if none is needed.
        on_ready: called with the URL of the server when it accepts connections.

    Raises:
        UsageError: `host` is not an address of this machine, or needs a token.
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
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
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
