"""What `gpt train` prints of a sweep."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from gpt.cli.options import tensorboard, terminal_width
from gpt.errors import command

if TYPE_CHECKING:
    from gpt.recipe.sweep import Sweep, SweepResult


def print_sweep(sweep: "Sweep", as_json: bool) -> None:
    """The combinations by their mean val loss, and the runs that failed. Exits with 1 for those."""
    if as_json:
        typer.echo(json.dumps(asdict(sweep)))
    else:
        typer.echo(f"\n{_table(sweep.combinations)}\n")
        for run in sweep.failed:
            typer.echo(f"failed:  {run.run}: {run.error}")
        typer.echo(f"watch:   {tensorboard(sweep.sweep)}")
        scored = [run for run in sweep.combinations[0].runs if run.val_loss is not None]
        if best := min(scored, key=lambda run: run.val_loss or 0.0, default=None):
            typer.echo(f"sample:  {command('sample', best.run)}")
        if sweep.failed:
            typer.echo(f"again:   {command('train', '--resume', sweep.sweep)}")
    if sweep.failed:
        raise typer.Exit(1)


def _table(results: "list[SweepResult]") -> str:
    """A row for each combination: its values, mean and standard error, and the loss of each run.

    The losses are left out where the terminal has no room for them.
    """
    keys = [*results[0].values]
    heading = [*(key.rpartition(".")[2] for key in keys), "mean val loss", "standard error"]
    rows = [[*heading, *(f"seed {run.seed}" for run in results[0].runs)]]
    for result in results:
        known = [_number(result.mean), _number(result.standard_error)]
        losses = [_number(run.val_loss, "failed") for run in result.runs]
        rows.append([*result.values.values(), *known, *losses])
    if len(_line(rows[0], _widths(rows))) > terminal_width():
        rows = [row[: len(heading)] for row in rows]
    return "\n".join(_line(row, _widths(rows)) for row in rows)


def _number(value: float | None, otherwise: str = "-") -> str:
    return otherwise if value is None else f"{value:.4f}"


def _widths(rows: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _line(row: list[str], widths: list[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
