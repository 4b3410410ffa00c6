"""`gpt attend`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

VAL_CHARACTERS = 64  # characters of the val split shown without --text
TITLE_CHARACTERS = 48  # most characters of the text in a title

if TYPE_CHECKING:
    from gpt.api.model import Model
    from gpt.inspection.attention_terminal import Style


def attend(
    run: RunName = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="The text to attend to: at most model.T characters. Default: the beginning of the "
            "run's val split.",
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The layer of the head to show; by default that of the head whose removal costs "
            "the text most.",
        ),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The head to show, likewise; in an ensemble, counted over all its members.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A picture of all heads (.png), or a page to explore them in a browser (.html); "
            "without it, one head is shown here.",
        ),
    ] = None,
    device: AnyDevice = "auto",
    checkpoint: WhichCheckpoint = "best",
    run_option: RunOption = None,
    debug: DebugFlag = False,
) -> None:
    """Show which earlier characters each head attends to, and what that does to the predictions."""
    from gpt.inspection.output import check_out, write_out

    run = one_run(run, run_option)
    if out is not None:
        check_out(out)
        if out.suffix.lower() == ".png" and (layer or head):
            raise UsageError(
                f"--out {out}: a picture shows all heads; leave out --layer and --head"
            )
    if text == "":
        raise UsageError("--text: expected at least one character, got none")

    from gpt import api

    with phase("loading the run"):
        model = api.load(run, checkpoint, device)
    for option, number, count in (
        ("--layer", layer, model.config.model.n_layer),
        ("--head", head, model.config.model.ensemble * model.config.model.n_head),
    ):
        if number is not None and number > count:
            raise UsageError(f"{option}: expected 1 to {count}, got {number}")
    vocabulary = model.vocabulary
    text = _val_text(model) if text is None else model.prepare(text)
    with phase("measuring the heads"):
        analysis = model.attention_analysis(text)
    names = vocabulary.names_of(vocabulary.encode(text))
    i, j = analysis.costliest_head(layer and layer - 1, head and head - 1)
    title = f"{model.run.resolve().name}, step {model.step}"
    if out is not None:
        cut = "…" if len(text) > TITLE_CHARACTERS else ""
        title += f": “{in_one_line(text[:TITLE_CHARACTERS])}{cut}”"
    if out is None:
        from gpt.inspection.attention_terminal import draw_head

        shown = draw_head(
            analysis,
            names,
            title,
            layer=i,
            head=j,
            width=terminal_width(),
            style=_style(),
            unit=vocabulary.unit,
        )
        typer.echo(shown, color=terminal_colour())
        return
    if out.suffix.lower() == ".png":
        with phase("drawing"):
            from gpt.inspection.attention_picture import draw_analysis, png

            content = png(draw_analysis(analysis, names, title, vocabulary))
    else:
        from gpt.inspection.attention_page import attention_page

        content = attention_page(analysis, text, title, vocabulary, (i, j))
    write_out(out, content)
    typer.echo(out)


def _val_text(model: "Model") -> str:
    try:
        if text := model.val_text(VAL_CHARACTERS):
            return text
        error = GPTError("the model knows no character of the val split")
    except GPTError as problem:
        error = problem
    raise UsageError(f"{error}; to show the heads on another text, give --text") from error


def _style() -> "Style":
    if terminal_colour():
        return "colour"
    return "blocks" if sys.stdout.isatty() and "utf" in sys.stdout.encoding.lower() else "digits"
