"""The command `gpt serve`: a model behind HTTP."""

import json
import sys

import typer

from gpt.cli.options import AnyDevice, RunName, WhichCheckpoint, option, wrapped
from gpt.errors import GPTError, Interrupted, UsageError
from gpt.terminal import phase, visible


def serve(
    run: RunName = None,
    port: int = option("N", "The port; 0 for any that is free.", default=8000, min=0, max=65535),
    host: str = option(
        "ADDRESS",
        "The address to listen on. If others can reach it (as with 0.0.0.0), give --token.",
        default="127.0.0.1",
    ),
    token: str | None = option(
        "SECRET",
        "Refuse requests without this secret; default the environment variable GPT_TOKEN.",
        envvar="GPT_TOKEN",
        show_envvar=False,
    ),
    device: AnyDevice = "auto",
    checkpoint: WhichCheckpoint = "best",
) -> None:
    """Serve a model to browsers, and to programs that use OpenAI's API.

    The page at the printed address is that of gpt export --to html. Ctrl-C stops the server.
    """
    if token is not None and not (token.isascii() and token.isprintable() and token):
        raise UsageError("--token: expected printable ASCII characters, at least one")
    try:
        from gpt.serve.app import serve as serve_model
        from gpt.serve.served_model import ServedModel
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise GPTError(
            f"gpt serve needs the package {error.name}; install it: pip install starlette uvicorn"
        ) from None

    from gpt import api

    with phase("loading the run"):
        model = api.load(run, checkpoint, device)

    known = not model.vocabulary.outside("Once")
    body = json.dumps({"prompt": "Once" if known else "", "max_tokens": 200})
    secret = ' -H "Authorization: Bearer $GPT_TOKEN"' if token else ""

    def on_ready(url: str) -> None:
        typer.echo(wrapped(visible(model.summary()), sys.stderr), err=True)
        typer.echo(f"{url}\ncurl {url}/v1/completions{secret} -d '{body}'")
        sys.stdout.flush()

    served = ServedModel(model.run.resolve().name, model.checkpoint, device)
    try:
        serve_model(served, host, port, token, on_ready)
    except (KeyboardInterrupt, SystemExit) as stop:  # the signal that stopped the server
        stopped = Interrupted()  # no message, because this is the usual end
        stopped.exit_code = getattr(stop, "code", Interrupted.exit_code)
        raise stopped from None
