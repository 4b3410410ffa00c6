"""`gpt attend`."""

from pathlib import Path
from typing import Annotated

import typer

from gpt.cli.options import AnyDevice, DebugFlag, RunName, WhichCheckpoint
from gpt.errors import UsageError


def attend(
    run: RunName = None,
    text: Annotated[
        str, typer.Option(help="The text to attend to: at most model.T characters.")
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
    from gpt.runs.folder import find_run

    check_out(out)
    if not text:
        raise UsageError("--text: expected at least one character, got none")
    folder = find_run(run)

    from gpt.device import select_device
    from gpt.evaluation.attention import attend_text
    from gpt.runs.checkpoint import read_checkpoint
    from gpt.runs.model import load_model
    from gpt.text.newlines import unify_newlines

    data = read_checkpoint(folder, checkpoint)
    text = unify_newlines(text, data.config.data.newlines)
    model = load_model(data, select_device(device))
    attention = attend_text(model, data.vocabulary, text)
    title = f"{folder.resolve().name}, step {data.step}"
    if out.suffix.lower() == ".png":
        from gpt.inspection.picture import png

        content = png(attention, text, title)
    else:
        from gpt.inspection.page import html

        content = html(attention, text, title, data.vocabulary)
    write_out(out, content)
    typer.echo(out)
