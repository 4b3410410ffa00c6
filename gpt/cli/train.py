"""The command `gpt train`: train or resume a run or a sweep, and print its results."""

import math
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gpt.cli.options import (
    JsonFlag,
    Settings,
    TextNames,
    duration,
    flag,
    option,
    show,
    show_json,
    tensorboard_command,
    terminal_width,
    wrapped,
)
from gpt.distributed import is_main
from gpt.errors import UsageError, command
from gpt.signals import StopSignals
from gpt.terminal import phase, render_table, visible

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.recipe.dry_run import Estimate
    from gpt.recipe.sweep import Sweep
    from gpt.training.run_context import Outcome

MIB = 2**20  # bytes of one mebibyte


def _show_all(ctx: typer.Context, asked: bool) -> None:
    """If `--help-all` is given (`asked`), print the help and all settings in groups, and exit."""
    if not asked:
        return
    from gpt.config.schema import SETTINGS

    groups: dict[str, list[tuple[str, str]]] = {}
    widest = max(map(len, SETTINGS))
    for setting in SETTINGS.values():
        row = (setting.key.ljust(widest), f"{setting.description}  [{setting.default}]")
        groups.setdefault(setting.group, []).append(row)
    formatter = ctx.make_formatter()
    heading = "\nSettings, in a config file or by --set KEY=VALUE; defaults in brackets"
    with formatter.section(heading):
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)
    typer.echo(ctx.get_help())
    typer.echo(formatter.getvalue().rstrip("\n"))
    raise typer.Exit


def train(
    text: TextNames = None,
    config: Path | None = option(
        "FILE",
        "A YAML file of settings, or the name of a shipped one, such as quickstart. Without it, "
        "settings are chosen for your text and time, or taken from the run of --init-from.",
    ),
    minutes: float | None = option(
        "N",
        "Train as many steps as fit into N minutes, the time of the whole command; fewer if more "
        "passes over the text would not help. Default 5, unless --config, --init-from or "
        "train.steps is given. With --resume, a finished run trains for N more minutes; for an "
        "interrupted run, N is the time of the whole run.",
    ),
    overrides: Settings = None,
    device: str | None = option("DEVICE", "auto, cpu, cuda, cuda:N or mps."),
    init_from: str | None = option(
        "RUN",
        "Fine-tune a run: start a new run from the weights of its best checkpoint. Unless "
        "train.steps is set, training stops early to prevent overfitting.",
    ),
    run_dir: Path | None = option(
        "DIR",
        "A new or empty folder for the run; default runs/NAME, named after the text or config, or "
        "runs/NAME-2 and so on.",
    ),
    seeds: int | None = option(
        "N",
        "A sweep: train with N seeds, and print the mean val loss and its standard error. "
        "Repeating the command resumes the sweep.",
        min=1,
    ),
    resume: str | None = option(
        "[RUN]",
        "Resume a run or sweep: its folder, or its name under runs/; default the newest. If the "
        "run's text was moved, name the text as TEXT.",
    ),
    overwrite: bool = flag("--overwrite", "Replace the run in --run-dir, or in runs/NAME."),
    dry_run: bool = flag("--dry-run", "Do not train: print parameters, memory and time."),
    as_json: JsonFlag = False,
    help_all: bool = flag(
        "--help-all", "Show this and all settings.", is_eager=True, callback=_show_all
    ),
) -> None:
    """Train a model on a text, then print a sample."""
    import psutil

    from gpt import api
    from gpt.recipe.sweep_spec import combinations
    from gpt.runs.folder import find_sweep

    start = psutil.Process().create_time() - time.time() + time.perf_counter()
    changes = [*(overrides or [])]
    changes += [] if device is None else [f"device={device}"]
    varies = seeds is not None or any(combinations(changes).values())
    is_sweep = resume is None and varies
    swept = None if resume is None else find_sweep(resume or None)
    new_only = config or init_from or run_dir or overwrite or dry_run or seeds
    for is_wrong, message in (
        (
            resume is not None and new_only,
            "--resume continues in the run's folder with the run's config; leave out --config, "
            "--init-from, --run-dir, --overwrite, --dry-run and --seeds, and change settings by "
            "--set",
        ),
        (
            swept and (text or minutes is not None or changes),
            f"{swept} is a sweep, whose settings cannot change; leave out all but "
            f"--resume, or resume one of its runs by name",
        ),
        (
            overwrite and is_sweep,
            "--overwrite does not replace a sweep; delete it by gpt runs --delete NAME, or choose "
            "another --run-dir",
        ),
        (
            dry_run and is_sweep,
            "--dry-run does not work with a sweep; give one value of each setting and no --seeds",
        ),
    ):
        if is_wrong:
            raise UsageError(message)

    def clock() -> float:
        """Return the seconds since this process started."""
        return time.perf_counter() - start

    asked: dict[str, Any] = {"text": text, "minutes": minutes, "settings": changes}
    new = asked | {"config": config, "init_from": init_from}
    if dry_run:
        _print_estimate(*api.estimate(**new, clock=clock), as_json)
        return
    work: partial[Any]
    if swept:
        work = partial(api.resume_sweep, swept)
    elif is_sweep:
        work = partial(api.sweep, **new, run_dir=run_dir, seeds=seeds)
    elif resume is not None:
        work = partial(api.resume, resume or None, **asked, clock=clock)
    else:
        work = partial(api.train, **new, run_dir=run_dir, overwrite=overwrite, clock=clock)
    with StopSignals("SIGINT", "SIGTERM", "SIGHUP") as signals:
        result: Any = work(should_stop=signals.should_stop)
    if is_sweep or swept:
        _print_sweep(result, as_json)
    elif is_main():
        _print_outcome(result, as_json)


def _print_outcome(outcome: "Outcome", as_json: bool) -> None:
    """Print the scores of a run, commands to try next, and a sample of its best checkpoint."""
    from gpt import api
    from gpt.sampling.stopping import collect, in_order

    with phase("loading the best checkpoint"):
        chunks = api.load(outcome.run).sample("")
    if as_json:
        show_json(asdict(outcome) | {"sample": collect(chunks, [""])[0].text})
        return
    typer.echo(f"\n{wrapped(_scores(outcome), sys.stdout)}")
    typer.echo(f"watch:   {tensorboard_command(str(Path(outcome.run).parent))}")
    typer.echo(f"sample:  {command('sample', outcome.run)}\n")
    for text in in_order(chunks, [""]):
        show(text)


def _scores(outcome: "Outcome") -> str:
    """Format a run's ending, its best val loss, and the bits per character."""
    loss, per_character = outcome.best_val_loss, outcome.best_val_loss_per_character
    unit = "" if loss == per_character else f" per byte, {per_character:.4f} per character"
    where = f"step {outcome.step} after {outcome.elapsed_s:.0f} s"
    is_done = outcome.reason == "all steps done"
    ending = f"all steps done: {where}" if is_done else f"stopped at {where}: {outcome.reason}"
    sampled = ", which `gpt sample` uses" if is_done and outcome.best_step < outcome.step else ""
    bits = per_character / math.log(2)
    trigram = outcome.trigram_bits_per_character
    other = "" if trigram is None else f"; a trigram model needs {trigram:.2f}"
    return (
        f"{ending}; the best checkpoint, of step {outcome.best_step}{sampled}, has a val "
        f"loss of {loss:.4f}{unit}\n"
        f"{bits:.3f} bits per character ({outcome.bits_per_byte:.3f} per byte){other}"
        f"\n{outcome.advice}"
    )


def _print_sweep(sweep: "Sweep", as_json: bool) -> None:
    """Print the combinations, lowest mean val loss first; exit with code 1 if runs failed."""
    if as_json:
        show_json(asdict(sweep))
    else:
        typer.echo(f"\n{_sweep_table(sweep)}\n")
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


def _sweep_table(sweep: "Sweep") -> str:
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


def _print_estimate(config: "Config", estimate: "Estimate", as_json: bool) -> None:
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
