"""The command `gpt serve`: a model behind HTTP."""

import json
import sys

import typer

from gpt.cli.options import (
    AnyDevice,
    DebugFlag,
    RunName,
    WhichCheckpoint,
    option,
    wrapped,
)
from gpt.errors import GPTError, UsageError
from gpt.status import phase
from gpt.text.display import visible

EXAMPLE = {"prompt": "Once", "max_tokens": 200, "temperature": 0.8}  # fields of a request


def serve(
    run: RunName = None,
    port: int = option("N", "The port; 0 for any that is free.", default=8000, min=0, max=65535),
    host: str = option(
        "ADDRESS",
        "The address to listen on; 0.0.0.0 for all of this machine, with --token.",
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
    debug: DebugFlag = False,
) -> None:
    """Serve a model to browsers, and to programs that use OpenAI's API.

    The page at the printed address is that of gpt export --to html. Ctrl-C stops the server. New
    checkpoints of a run that is being trained are served, too.
    """
    if token is not None and not (token.isascii() and token.isprintable() and token):
        raise UsageError("--token: expected printable ASCII characters, at least one")
    try:
        from gpt.serve.server import serve as serve_run
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise GPTError(
            f"gpt serve needs the package {error.name}; install it: pip install starlette uvicorn"
        ) from None

    from gpt import api

    with phase("loading the run"):
        model = api.load(run, checkpoint, device)

    def on_ready(url: str) -> None:
        typer.echo(wrapped(visible(model.summary()), sys.stderr), err=True)
        secret = ' -H "Authorization: Bearer $GPT_TOKEN"' if token else ""
        typer.echo(f"{url}\ncurl {url}/v1/completions{secret} -d '{json.dumps(EXAMPLE)}'")
        sys.stdout.flush()

    serve_run(
        model.run,
        model.checkpoint,
        which=checkpoint,
        device=device,
        host=host,
        port=port,
        token=token,
        on_ready=on_ready,
    )
