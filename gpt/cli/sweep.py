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
    """Print the combinations by their mean val loss, and the runs that failed; if any, exit 1."""
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
    """Return a row for each combination: its values, mean, standard error, and each run's loss.

    The losses of the runs are left out if the terminal is too narrow.
    """
    from gpt.inspection.tables import render_table

    seeds = [f"seed {run.seed}" for run in results[0].runs]
    keys = [key.rpartition(".")[2] for key in results[0].values]
    rows = [
        [
            *result.values.values(),
            _number(result.mean),
            _number(result.standard_error),
            *(_number(run.val_loss, "failed") for run in result.runs),
        ]
        for result in results
    ]
    heading = [*keys, "mean val loss", "standard error", *seeds]
    width = terminal_width()
    return render_table(heading, rows, "r" * len(heading), width=width, drop=seeds[::-1])


def _number(value: float | None, otherwise: str = "-") -> str:
    return otherwise if value is None else f"{value:.4f}"
