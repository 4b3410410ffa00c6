"""Print the results of a sweep."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from gpt.cli.options import show_json, tensorboard_command, terminal_width
from gpt.errors import command
from gpt.tables import render_table

if TYPE_CHECKING:
    from gpt.recipe.sweep import Sweep


def print_sweep(sweep: "Sweep", as_json: bool) -> None:
    """Print the combinations, lowest mean val loss first; exit with code 1 if runs failed."""
    if as_json:
        show_json(asdict(sweep))
    else:
        typer.echo(f"\n{_table(sweep)}\n")
        for run in sweep.failed:
            typer.echo(f"failed:  {run.run}: {run.error}")
        typer.echo(f"watch:   {tensorboard_command(sweep.sweep)}")
        typer.echo(f"compare: {command('compare', sweep.sweep)}")
        scored = [run for run in sweep.combinations[0].runs if run.val_loss is not None]
        if best := min(scored, key=lambda run: run.val_loss or 0.0, default=None):
            typer.echo(f"sample:  {command('sample', best.run)}")
        if sweep.failed:
            typer.echo(f"again:   {command('train', '--resume', sweep.sweep)}")
    if sweep.failed:
        raise typer.Exit(1)


def _table(sweep: "Sweep") -> str:
    """Format a table with a row for each combination of the settings that the sweep varies."""
    first = sweep.combinations[0]
    keys = [key.rpartition(".")[2] for key in first.values]
    seeds = [f"seed {run.seed}" for run in first.runs]
    heading = [*keys, "mean val loss", "standard error", *seeds]
    rows = []
    for each in sweep.combinations:
        means = ["-" if x is None else f"{x:.4f}" for x in (each.mean, each.standard_error)]
        losses = ["failed" if r.val_loss is None else f"{r.val_loss:.4f}" for r in each.runs]
        rows.append([*each.values.values(), *means, *losses])
    width = terminal_width()
    return render_table(heading, rows, "r" * len(heading), width=width, drop=seeds[::-1])
