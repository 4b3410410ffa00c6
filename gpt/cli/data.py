"""The command `gpt data`: report what is in a text."""

from dataclasses import asdict

from gpt.cli.options import (
    DebugFlag,
    JsonFlag,
    Settings,
    TextNames,
    show,
    show_json,
    terminal_width,
)
from gpt.errors import UsageError


def data(
    text: TextNames = None,
    overrides: Settings = None,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Show a text's characters and damage, and lines of val in train."""
    if not text:
        raise UsageError("expected a TEXT")
    from gpt import api
    from gpt.inspection.text_views import text_table

    report = api.describe(text, overrides or ())
    if as_json:
        show_json(asdict(report))
    else:
        show(text_table(report, terminal_width()) + "\n")
