"""What `gpt train --find-lr` prints and draws."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpt.cli.options import terminal_width
from gpt.inspection.output import check_out, write_out

if TYPE_CHECKING:
    from gpt.recipe.range_test import RangeTest

OPTION = "--find-lr"


def check_picture(path: Path) -> None:
    """Raises GPTError unless the picture, and the folder that it is to be in, can be written."""
    from gpt.runs.folder import check_can_be_made

    check_can_be_made(path.parent, "work in another folder")
    if path.parent.exists():
        check_out(path, OPTION, (".png",))


def show_range_test(test: "RangeTest", picture: Path, as_json: bool) -> None:
    """A chart, what it suggests, ready to paste, and the file of the picture."""
    from gpt.inspection.attention_picture import png
    from gpt.inspection.range_test import AXIS, MARKS, chart, draw_range_test
    from gpt.runs.folder import make_folder

    marks = {
        "the loss falls fastest": test.steepest,
        "suggested": test.suggested,
        "the loss is lowest, then rises" if test.rises else "the test ended": test.highest,
    }
    title = f"learning-rate range test: {picture.stem}, {len(test.losses)} steps"
    figure = draw_range_test(test.factors, test.losses, test.smoothed, marks, title)
    make_folder(picture.parent)
    write_out(picture, png(figure), OPTION)
    if as_json:
        typer.echo(json.dumps(asdict(test) | {"picture": str(picture)}))
        return
    typer.echo(f"\n{chart(test.factors, test.smoothed, marks, terminal_width())}")
    typer.echo(f"train loss by {AXIS}\n")
    for letter, (meaning, factor) in zip(MARKS, marks.items(), strict=True):
        typer.echo(f"{letter}  {meaning + ':':<32}x {factor:.2g}")
    typer.echo(f"\nuse:     {as_options(test.settings)}")
    typer.echo(f"picture: {picture}")


def as_options(settings: Mapping[str, float]) -> str:
    """The settings as one types them."""
    return shlex.join(part for key, x in settings.items() for part in ("--set", f"{key}={x:g}"))
