"""Print the result of a dry run."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from gpt.cli.options import show_json

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.recipe.dry_run import Estimate

MIB = 2**20  # bytes of one mebibyte


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
    typer.echo(f"time        {_duration(estimate.seconds)} {where}")
    for name, cost in estimate.costs.items():
        times = f"{cost.count:,} x " if cost.count > 1 else ""
        typer.echo(f"  {name:<18}{times + _duration(cost.seconds):>15}")


def _duration(seconds: float) -> str:
    """Format `seconds` in a suitable unit: `2.3 h`, `4.5 min`, `6.7 s` or `8.9 ms`."""
    for unit, size, least in (("h", 3600, 2), ("min", 60, 2), ("s", 1, 1)):
        if seconds >= least * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{1000 * seconds:.1f} ms"
