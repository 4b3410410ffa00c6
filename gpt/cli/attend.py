"""`gpt attend`."""

from pathlib import Path
from typing import Annotated

import typer

from gpt.cli.options import AnyDevice, DebugFlag, RunName, WhichCheckpoint
from gpt.errors import UsageError


def attend(
    run: RunName = None,
    text: Annotated[
        str, typer.Option(metavar="TEXT", help="The text to attend to: at most model.T characters.")
    ] = ...,  # type: ignore[assignment]
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="A picture of all heads (.png), or a page to explore them in a browser (.html).",
        ),
    ] = ...,  # type: ignore[assignment]
    device: AnyDevice = "auto",
    checkpoint: WhichCheckpoint = "best",
    debug: DebugFlag = False,
) -> None:
    """Show which earlier characters each head attends to, and what the model predicts next."""
    from gpt.inspection.output import check_out, write_out

    check_out(out)
    if not text:
        raise UsageError("--text: expected at least one character, got none")

    from gpt import api

    model = api.load(run, checkpoint, device)
    text = model.prepare(text)
    attention = model.attention(text)
    title = f"{model.run.resolve().name}, step {model.step}"
    if out.suffix.lower() == ".png":
        from gpt.inspection.picture import png

        content = png(attention, text, title)
    else:
        from gpt.inspection.page import html

        content = html(attention, text, title, model.vocabulary)
    write_out(out, content)
    typer.echo(out)
