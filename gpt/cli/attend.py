"""`gpt attend`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpt.cli.options import (
    AnyDevice,
    DebugFlag,
    RunName,
    RunOption,
    WhichCheckpoint,
    one_run,
    terminal_colour,
    terminal_width,
)
from gpt.errors import GPTError, UsageError
from gpt.status import phase
from gpt.text.display import in_one_line

if TYPE_CHECKING:
    from gpt.api.model import Model

VAL_CHARACTERS = 64  # characters of the val split that are shown without --text
TITLE_CHARACTERS = 48  # characters of the text in the title of a picture or page


def attend(
    run: RunName = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="The text to attend to, at most model.T characters; default the beginning of the "
            "run's val split.",
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The layer of the head to show; default that of the head whose removal raises "
            "the loss of the text most.",
        ),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The head to show, with the same default; an ensemble counts the heads of all "
            "its members.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a picture of all heads (.png) or a page to explore them (.html), instead "
            "of showing one head here.",
        ),
    ] = None,
    device: AnyDevice = "auto",
    checkpoint: WhichCheckpoint = "best",
    run_option: RunOption = None,
    debug: DebugFlag = False,
) -> None:
    """Show what each head attends to, and what it contributes."""
    from gpt.inspection.output import check_out, write_out

    run = one_run(run, run_option)
    is_picture = out is not None and out.suffix.lower() == ".png"
    if out is not None:
        check_out(out)
    if is_picture and (layer or head):
        raise UsageError(f"--out {out}: a picture shows all heads; leave out --layer and --head")
    if text == "":
        raise UsageError("--text: expected at least one character, got none")

    from gpt import api

    with phase("loading the run"):
        model = api.load(run, checkpoint, device)
    config = model.config.model
    _check_number("--layer", layer, config.n_layer)
    _check_number("--head", head, config.ensemble * config.n_head)
    text = _val_text(model) if text is None else model.prepare(text)
    with phase("measuring the heads"):
        analysis = model.attention_analysis(text)
    vocabulary = model.vocabulary
    names = vocabulary.names_of(vocabulary.encode(text))
    chosen = analysis.costliest_head(layer and layer - 1, head and head - 1)
    title = f"{model.run.resolve().name}, step {model.step}"
    if out is None:
        from gpt.inspection.attention_terminal import draw_head

        shown = draw_head(
            analysis,
            names,
            title,
            layer=chosen[0],
            head=chosen[1],
            width=terminal_width(),
            style=_style(),
            unit=vocabulary.unit,
        )
        typer.echo(shown, color=terminal_colour())
        return
    ellipsis = "…" if len(text) > TITLE_CHARACTERS else ""
    title += f": “{in_one_line(text[:TITLE_CHARACTERS])}{ellipsis}”"
    if is_picture:
        with phase("drawing"):
            from gpt.inspection.attention_picture import draw_analysis, png

            content = png(draw_analysis(analysis, names, title, vocabulary))
    else:
        from gpt.inspection.attention_page import attention_page

        content = attention_page(analysis, text, title, vocabulary, chosen)
    write_out(out, content)
    typer.echo(out)


def _check_number(option: str, number: int | None, count: int) -> None:
    if number is not None and number > count:
        raise UsageError(f"{option}: expected 1 to {count}, got {number}")


def _val_text(model: "Model") -> str:
    """Return the beginning of the val split; raise UsageError if there is none."""
    try:
        text = model.val_text(VAL_CHARACTERS)
        problem = "" if text else "the model has none of the characters of the val split"
    except GPTError as error:
        problem = str(error)
    if problem:
        raise UsageError(f"{problem}; to show the heads on another text, give --text")
    return text


def _style() -> Literal["colour", "blocks", "digits"]:
    """Return how to draw weights: blocks need a terminal that shows Unicode."""
    if terminal_colour():
        return "colour"
    return "blocks" if sys.stdout.isatty() and "utf" in sys.stdout.encoding.lower() else "digits"
