"""`gpt train`."""

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt.cli.find_lr import check_picture, show_range_test
from gpt.cli.help import HelpAllFlag
from gpt.cli.options import DebugFlag, JsonFlag, show, tensorboard, wrapped
from gpt.cli.signals import StopSignals
from gpt.cli.sweep import print_sweep
from gpt.errors import UsageError, command
from gpt.status import phase
from gpt.torchrun import is_launched, is_main

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.training.dry_run import Estimate
    from gpt.training.trainer import Outcome


def train(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="A file, folder, glob, - for standard input, python-docs, python-source or "
            "tinyshakespeare, in place of data.source; several are joined. .gz, .bz2, .xz, .zst, "
            ".zip and .tar files are unpacked.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A YAML file of settings, or the name of a shipped one, such as quickstart. "
            "Without it, settings are chosen for your text and time; if you set train.steps, the "
            "defaults are used instead.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Train for N minutes, which counts the whole command. Default 5, unless --config "
            "or train.steps is given. With --resume, a finished run trains for N more minutes; for "
            "an interrupted run, N is the time of the whole run.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Change a setting, such as train.steps=500; repeat for more. Several values, "
            "train.learning_rate=1e-3,2e-3, are a sweep: a run for each combination.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps."),
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Fine-tune a run: start from the weights of its best checkpoint, in a new run. "
            "Unless train.steps is set, it stops before the model overfits.",
        ),
    ] = None,
    freeze: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --init-from: do not train the first N blocks.",
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A new or empty folder for the run; default runs/NAME, after the text, else "
            "after the config.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="A sweep: train with N seeds, and print the mean val loss and its standard error. "
            "Repeating the command resumes it.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="With a sweep: train N runs at once. The CPU threads are divided among the runs.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="[RUN]",
            help="Resume a run or sweep: its folder, or its name under runs/; default the newest, "
            "or the newest of TEXT.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run or sweep in that folder.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Do not train: print parameters, memory and time.",
        ),
    ] = False,
    find_lr: Annotated[
        bool,
        typer.Option(
            "--find-lr",
            help="Do not train: try learning rates in 100 steps, print which to use, and draw "
            "a picture of their losses.",
        ),
    ] = False,
    show_config: Annotated[
        bool,
        typer.Option("--show-config", help="With --dry-run: print the config, too."),
    ] = False,
    as_json: JsonFlag = False,
    help_all: HelpAllFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Train a model on a text, then print a sample."""
    from gpt import api
    from gpt.runs.folder import RUNS, find_sweep

    short = {"device": device, "train.freeze": freeze}
    changes = [*(overrides or []), *(f"{k}={v}" for k, v in short.items() if v is not None)]
    clock = _since_start()
    if resume is not None and (config or init_from or run_dir or overwrite or dry_run or seeds):
        raise UsageError(
            "--resume continues in the run's folder with the run's config; leave out --config, "
            "--init-from, --run-dir, --overwrite, --dry-run and --seeds, and change settings by "
            "--set"
        )
    is_sweep = resume is None and (seeds is not None or api.is_sweep(changes))
    swept = None if resume is None or (text and not resume) else find_sweep(resume or None)
    if jobs is not None and not (is_sweep or swept):
        raise UsageError("--jobs goes with a sweep: --seeds N, or --set with several values")
    if dry_run and is_sweep:
        raise UsageError("--dry-run is of one run; leave out --seeds, and all values but one")
    if swept and (text or minutes is not None or changes):
        raise UsageError(
            f"{swept} is a sweep and resumes as it is; leave out all but --resume and --jobs, or "
            f"resume one of its runs by its name"
        )
    if find_lr and (dry_run or is_sweep or resume is not None or run_dir or overwrite):
        raise UsageError(
            "--find-lr trains no run; leave out --dry-run, --resume, --run-dir, --overwrite, "
            "--seeds, and all values of a setting but one"
        )
    if show_config and not dry_run:
        raise UsageError("--show-config goes with --dry-run; a run's config is in its config.yaml")
    asked: dict[str, Any] = {"text": text, "minutes": minutes, "settings": changes}
    of_new_run = {"config": config, "init_from": init_from} | asked
    its_folder: dict[str, Any] = {"run_dir": run_dir, "overwrite": overwrite}
    if find_lr:
        picture = RUNS / f"{api.name_of(config, text)}-find-lr.png"
        check_picture(picture)
        with StopSignals() as signals:
            test = api.find_learning_rate(**of_new_run, should_stop=signals.should_stop)
        show_range_test(test, picture, as_json)
        return
    if is_sweep or swept:
        with StopSignals() as signals:
            watched: dict[str, Any] = {
                "should_stop": signals.should_stop,
                "on_event": signals.on_event,
            }
            if swept:
                ended = api.resume_sweep(swept, jobs=jobs, **watched)
            else:
                ended = api.sweep(**of_new_run, **its_folder, seeds=seeds, jobs=jobs, **watched)
        print_sweep(ended, as_json)
        return
    if dry_run:
        settled, estimate = api.estimate(**of_new_run, clock=clock)
        _print_estimate(settled, estimate, as_json, show_config)
        return
    with StopSignals(repeated=is_launched()) as signals:
        watched = {
            "should_stop": signals.should_stop,
            "on_event": signals.on_event,
            "clock": clock,
        }
        if resume is not None:
            outcome = api.resume(resume or None, **asked, **watched)
        else:
            outcome = api.train(**of_new_run, **its_folder, **watched)
    if is_main():
        _print_outcome(outcome, as_json)


def _print_outcome(outcome: "Outcome", as_json: bool) -> None:
    """The run's scores and a sample of its best model; how to watch it and sample more."""
    from gpt import api
    from gpt.runs.checkpoint import read_summary
    from gpt.sampling.samples import collect, in_order

    # a resume may have changed the rules since the best checkpoint
    config = read_summary(Path(outcome.run), "last").config
    with phase("loading the best checkpoint"):
        model = api.load(outcome.run)
    chunks = model.sample([""], seed=config.seed, **config.sample.model_dump())
    if as_json:
        typer.echo(json.dumps(asdict(outcome) | {"sample": collect(chunks, [""])[0].text}))
        return
    loss, per_character = outcome.best_val_loss, outcome.best_val_loss_per_character
    bits = per_character / math.log(2)
    of_bytes = "" if loss == per_character else f" per byte, {per_character:.4f} per character"
    ended = f"step {outcome.step} after {outcome.elapsed_s:.0f} s"
    is_done = outcome.reason == "all steps done"
    ended = f"all steps done: {ended}" if is_done else f"stopped at {ended}: {outcome.reason}"
    sampled = ", which `gpt sample` uses" if is_done and outcome.best_step < outcome.step else ""
    best = f"best val loss {loss:.4f}{of_bytes} at step {outcome.best_step}{sampled}"
    typer.echo(f"\n{wrapped(f'{ended}; {best}', sys.stdout)}")
    trigram = outcome.trigram_bits_per_character
    needed = [] if trigram is None else [f"a trigram model needs {trigram:.2f}"]
    needed.append(f"xz {'needs ' if trigram is None else ''}{outcome.xz_bits_per_character:.2f}")
    scores = f"{bits:.3f} bits per character ({outcome.bits_per_byte:.3f} per byte)"
    typer.echo(wrapped(f"{scores}; {', '.join(needed)}", sys.stdout))
    typer.echo(f"watch:   {tensorboard(str(Path(outcome.run).parent))}")
    typer.echo(f"sample:  {command('sample', outcome.run)}\n")
    for text in in_order(chunks, [""]):
        show(text)


def _since_start() -> Callable[[], float]:
    """A clock: seconds since this process started."""
    import psutil

    start = time.perf_counter() - (time.time() - psutil.Process().create_time())
    return lambda: time.perf_counter() - start


def _print_estimate(
    config: "Config", estimate: "Estimate", as_json: bool, show_config: bool
) -> None:
    """Parameters, memory and time, and what takes it; then the config, if it is asked for."""
    if as_json:
        typer.echo(json.dumps({"config": config.model_dump()} | asdict(estimate)))
        return
    total = sum(estimate.parameters.values())
    typer.echo(f"parameters  {total:,}")
    for part, count in estimate.parameters.items():
        typer.echo(f"  {part:<18}{count:>13,}")
    mib = 2**20
    typer.echo(f"memory      {estimate.peak_bytes / mib:,.0f} MiB at most")
    typer.echo(f"  {'model, optimizer':<18}{estimate.state_bytes / mib:>13,.1f} MiB")
    typer.echo(
        f"time        {_duration(estimate.seconds)} on {estimate.device} in {estimate.precision}"
    )
    for name, cost in estimate.costs.items():
        times = f"{cost.count:,} x " if cost.count > 1 else ""
        typer.echo(f"  {name:<18}{times + _duration(cost.seconds):>15}")
    if show_config:
        from gpt.config.yaml import to_yaml

        typer.echo(f"\n{to_yaml(config)}")


def _duration(seconds: float) -> str:
    for unit, size, least in (("h", 3600, 2), ("min", 60, 2), ("s", 1, 1)):
        if seconds >= least * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{1000 * seconds:.1f} ms"
