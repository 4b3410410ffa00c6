"""The command `gpt data`: report what is in a text."""

import json
from dataclasses import asdict
from pathlib import Path

from gpt.cli.options import (
    DebugFlag,
    JsonFlag,
    OverwriteFlag,
    Settings,
    TextNames,
    flag,
    option,
    show,
    show_json,
    terminal_width,
)
from gpt.errors import UsageError
from gpt.files import write_atomically


def data(
    text: TextNames = None,
    overrides: Settings = None,
    html: Path | None = option("FILE", "Write a page for a browser, with longer tables."),
    overwrite: OverwriteFlag = False,
    clear: bool = flag("--clear", "Delete the cached texts; gpt prepares them again."),
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Show a text's characters and damage, and lines of val in train."""
    if (clear and (text or overrides or html)) or not (clear or text):
        raise UsageError("expected a TEXT, or --clear alone, which deletes all cached texts")
    if clear:
        from gpt.text import cache

        freed = cache.clear()
        message = f"freed {freed:,} bytes in {cache.cache_dir()}"
        show((json.dumps({"freed_bytes": freed}) if as_json else message) + "\n")
        return
    from gpt import api
    from gpt.inspection.output import check_out
    from gpt.inspection.text_views import text_page, text_table

    if html is not None:
        check_out(html, "--html", [".html"], overwrite=overwrite)
    report = api.describe(text or (), overrides or ())
    if html is not None:
        write_atomically(html, [text_page(report)])
    if as_json:
        show_json(asdict(report))
    else:
        show((text_table(report, terminal_width()) if html is None else str(html)) + "\n")
