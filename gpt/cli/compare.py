"""The command `gpt compare`: compare runs, and print tables or draw their curves."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpt.cli.options import JsonFlag, OverwriteFlag, option, show, show_json, terminal_width
from gpt.files import check_out, write_atomically
from gpt.terminal import phase

ComparedNames = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN",
        help="Runs or sweeps: folders, or names under runs/; also files with nanoGPT's log. Runs "
        "that differ only by seed form one row. Each row is compared with the first.",
    ),
]


def compare(
    runs: ComparedNames,
    out: Path | None = option(
        "FILE", "Also draw the losses by steps, characters and seconds, as a .png file."
    ),
    overwrite: OverwriteFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Compare runs: settings, losses, time, size.

    The difference of two rows is shown with two confidence intervals: one for other texts of the
    same kind, and one for other seeds.
    """
    from gpt import api
    from gpt.inspection.report_views import comparison_text

    if out is not None:
        check_out(out, "--out", [".png"], overwrite=overwrite)

    comparison = api.compare(runs)
    if out is not None:
        with phase("drawing"):
            from gpt.inspection.pictures import draw_curves, png

            write_atomically(out, [png(draw_curves(comparison))])
    if as_json:
        show_json(asdict(comparison))
    else:
        show(comparison_text(comparison, terminal_width()) + "\n")
