"""Listen on a port, and serve a model until a signal arrives."""

import ipaddress
import logging
import socket
from collections.abc import Callable

import uvicorn

from gpt.errors import GPTError, UsageError
from gpt.serve.app import App
from gpt.serve.served_model import ServedModel

SHUTDOWN_S = 3  # seconds in which responses must end after a signal
MAX_CONNECTIONS = 256  # largest number of clients at once; requests of further ones are refused


def serve(
    model: ServedModel, host: str, port: int, token: str | None, on_ready: Callable[[str], object]
) -> None:
    """Serve a model until SIGINT or SIGTERM arrives, then run that signal's previous handler.

    Port 0 is any that is free. Requests need `token`, unless it is None. `on_ready` is called with
    the URL of the server when it accepts connections.

    Raises:
        UsageError: `host` is not an address; or other machines can reach it, and there is no token.
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
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the application logs its errors
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
