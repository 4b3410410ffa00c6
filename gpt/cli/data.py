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
            help="The text, as gpt train takes it: a file, a folder, a glob, - for standard input, "
            "python-docs, python-source or tinyshakespeare; several are joined.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Read it by other settings, such as data.lowercase=true; repeat for more.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page for a browser, which lists more."),
    ] = None,
    clear: Annotated[
        bool,
        typer.Option(
            "--clear",
            help="Instead, remove what is cached of texts: it is prepared again when needed.",
        ),
    ] = False,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Show what is in a text: its characters, damage in it, and the loss that a model must beat."""
    if clear and not (text or overrides or html):
        _clear(as_json)
        return
    if clear or not text:
        raise UsageError("expected a TEXT, or --clear alone, which frees the cache of all texts")
    from gpt import api
    from gpt.inspection.output import check_out, write_out

    if html is not None:
        check_out(html, "--html", (".html",))
    report = api.describe(text, overrides or ())
    if html is not None:
        from gpt.inspection.text_views import text_page

        write_out(html, text_page(report), "--html")
    if as_json:
        show(json.dumps(asdict(report)))
    elif html is not None:
        show(str(html))
    else:
        from gpt.inspection.text_views import text_table

        show(text_table(report, terminal_width()))
    show("\n")


def _clear(as_json: bool) -> None:
    from gpt.text.cache import cache_dir, clear

    freed = clear()
    show(
        json.dumps({"freed_bytes": freed}) if as_json else f"freed {freed:,} bytes in {cache_dir()}"
    )
    show("\n")
