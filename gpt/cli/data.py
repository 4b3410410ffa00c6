"""The command `gpt data`: report what is in a text."""

from dataclasses import asdict
from pathlib import Path

from gpt.cli.options import (
    JsonFlag,
    OverwriteFlag,
    Settings,
    TextNames,
    option,
    show,
    show_json,
    terminal_width,
)
from gpt.files import check_out, write_atomically


def data(
    text: TextNames,
    overrides: Settings = None,
    html: Path | None = option("FILE", "Write a page for a browser, with longer tables."),
    overwrite: OverwriteFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Show characters, decoding errors, lines shared by val and train."""
    from gpt import api
    from gpt.inspection.report_views import text_page, text_table

    if html is not None:
        check_out(html, "--html", [".html"], overwrite=overwrite)
    report = api.describe(text or (), overrides or ())
    if html is not None:
        write_atomically(html, [text_page(report)])
    if as_json:
        show_json(asdict(report))
    else:
        show((text_table(report, terminal_width()) if html is None else str(html)) + "\n")
