"""The command `gpt attend`: print, draw or explore attention weights."""

from pathlib import Path

import typer

from gpt.cli.options import (
    AnyDevice,
    OverwriteFlag,
    RunName,
    WhichCheckpoint,
    option,
    terminal_width,
)
from gpt.errors import UsageError, without_middle
from gpt.files import check_out, write_atomically
from gpt.terminal import in_one_line, phase

VAL_CHARACTERS = 64  # characters of the val split that are shown without --text
TITLE_CHARACTERS = 48  # characters of the text in the title of a picture or page


def attend(
    run: RunName = None,
    text: str | None = option(
        "TEXT", "At most model.T characters; default the start of the run's val split."
    ),
    layer: int | None = option(
        "N", "Show a head of layer N; default the head that lowers the loss most.", min=1
    ),
    head: int | None = option(
        "N", "Show head N of a layer; default the head that lowers the loss most.", min=1
    ),
    out: Path | None = option(
        "FILE", "Write a picture of all heads (.png) or a page to explore them (.html)."
    ),
    overwrite: OverwriteFlag = False,
    device: AnyDevice = "auto",
    checkpoint: WhichCheckpoint = "best",
) -> None:
    """Show what each head attends to, and how much it lowers the loss."""
    is_picture = out is not None and out.suffix.lower() == ".png"
    if out is not None:
        check_out(out, "--out", [".png", ".html"], overwrite=overwrite)
    if is_picture and (layer or head):
        raise UsageError(f"--out {out}: a picture shows all heads; leave out --layer and --head")

    from gpt import api
    from gpt.api.run_text import run_text
    from gpt.text.vocabulary import REPLACEMENT

    with phase("loading the run"):
        model = api.load(run, checkpoint, device)
    config, vocabulary = model.config.model, model.vocabulary
    for name, number, count in (
        ("--layer", layer, config.n_layer),
        ("--head", head, config.n_head),
    ):
        if number is not None and number > count:
            raise UsageError(f"{name}: expected 1 to {count}, got {number}")
    if text is None:
        corpus = run_text(model, "to show the heads on another text, give --text")
        ids = corpus.val[: min(VAL_CHARACTERS, config.T)]
        text = vocabulary.decode(ids).replace(REPLACEMENT, "")
    else:
        text = model.prepare(text)
    with phase("measuring the heads"):
        analysis = api.analyze_attention(model, text)
    names = vocabulary.names_of(vocabulary.encode(text))
    chosen = analysis.costliest_head(layer and layer - 1, head and head - 1)
    title = f"{model.run.resolve().name}, step {model.step}"
    if config.ensemble > 1:
        title += f", member 1 of {config.ensemble}"
    if out is None:
        from gpt.inspection.attention_views import draw_head

        width, unit = terminal_width(), vocabulary.unit
        typer.echo(draw_head(analysis, names, title, chosen, width=width, unit=unit))
        return
    title += f": “{in_one_line(without_middle(text, TITLE_CHARACTERS))}”"
    if is_picture:
        with phase("drawing"):
            from gpt.inspection.pictures import draw_heads, png

            content = png(draw_heads(analysis, names, title))
    else:
        from gpt.inspection.attention_views import attention_page

        content = attention_page(analysis, text, title, vocabulary, chosen)
    write_atomically(out, [content])
    typer.echo(out)
