"""Print the results of a sweep or of a dry run."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from gpt.cli.options import duration, show_json, tensorboard_command, terminal_width, wrapped
from gpt.errors import command
from gpt.terminal import render_table, visible

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.recipe.dry_run import Estimate
    from gpt.recipe.sweep import Sweep

MIB = 2**20  # bytes of one mebibyte


def print_sweep(sweep: "Sweep", as_json: bool) -> None:
    """Print the combinations, lowest mean val loss first; exit with code 1 if runs failed."""
    if as_json:
        show_json(asdict(sweep))
    else:
        typer.echo(f"\n{_table(sweep)}\n")
        for run in sweep.failed:
            typer.echo(wrapped(visible(f"failed:  {run.run}: {run.error}"), sys.stdout))
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


def print_estimate(config: "Config", estimate: "Estimate", as_json: bool) -> None:
    """Print the estimated parameters, memory and time of a run, each with its parts."""
    if as_json:
        show_json({"config": config.model_dump()} | asdict(estimate))
        return
    typer.echo(f"parameters  {sum(estimate.parameters.values()):,}")
    for part, count in estimate.parameters.items():
        typer.echo(f"  {part:<18}{count:>13,}")
    typer.echo(f"memory      {estimate.peak_bytes / MIB:,.0f} MiB at most")
    typer.echo(f"  {'model, optimizer':<18}{estimate.state_bytes / MIB:>13,.1f} MiB")
    where = f"on {estimate.device} in {estimate.precision}"
    typer.echo(f"time        {duration(estimate.seconds)} {where}")
    for name, cost in estimate.costs.items():
        times = f"{cost.count:,} x " if cost.count > 1 else ""
        typer.echo(f"  {name:<18}{times + duration(cost.seconds):>15}")
