"""`gpt data`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpt.cli.options import DebugFlag, JsonFlag, show, terminal_width
from gpt.errors import UsageError


def data(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="The text, as for gpt train: a file, a folder, a glob, - for standard input, "
            "python-docs, python-source or tinyshakespeare; several texts are joined.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Read the text with another setting, such as data.lowercase=true; repeatable.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page for a browser, with longer tables."),
    ] = None,
    clear: Annotated[
        bool,
        typer.Option(
            "--clear",
            help="Delete the cached texts instead; they are prepared again when needed.",
        ),
    ] = False,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Show what is in a text: characters, damage, and the loss to beat."""
    if clear == bool(text or overrides or html) or not (text or clear):
        raise UsageError("expected a TEXT, or --clear alone, which deletes all cached texts")
    if clear:
        from gpt.text.cache import cache_dir
        from gpt.text.cache import clear as clear_cache

        freed = clear_cache()
        message = f"freed {freed:,} bytes in {cache_dir()}"
        show(json.dumps({"freed_bytes": freed}) if as_json else message)
        show("\n")
        return
    from gpt import api
    from gpt.inspection.output import check_out, write_out
    from gpt.inspection.text_views import text_page, text_table

    if html is not None:
        check_out(html, "--html", (".html",))
    report = api.describe(text or (), overrides or ())
    if html is not None:
        write_out(html, text_page(report), "--html")
    if as_json:
        show(json.dumps(asdict(report)))
    else:
        show(text_table(report, terminal_width()) if html is None else str(html))
    show("\n")
