"""`gpt train`."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt.cli.find_lr import check_picture, show_range_test
from gpt.cli.options import DebugFlag, JsonFlag, show, tensorboard
from gpt.cli.signals import StopSignals
from gpt.cli.sweep import print_sweep
from gpt.errors import UsageError, command
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
            help="The text, in place of data.source: a file, a folder, a glob, - for standard "
            "input, python-docs, python-source or tinyshakespeare; several are joined. .gz, .bz2, "
            ".xz and .zst are decompressed, .zip and .tar looked through.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A YAML file of settings, or the name of a shipped one, such as quickstart; the "
            "other settings have their defaults. Without it, all that --set leaves open is chosen "
            "for the text and the minutes; but with train.steps set it has its defaults.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Train as many steps as fit into N minutes, start and end of the command "
            "included; 5 without --config and train.steps. Short for --set train.minutes=N.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Change one setting, such as train.steps=500; repeat for more. With several "
            "values, train.learning_rate=1e-3,2e-3, it is a sweep: a run for each combination.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE", help="Short for --set device=DEVICE: auto, cpu, cuda, cuda:N or mps."
        ),
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Fine-tune a run: begin with the weights of its best checkpoint, in a new run; "
            "the text's new characters are added.",
        ),
    ] = None,
    freeze: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Short for --set train.freeze=N: with --init-from, leave the first N blocks as "
            "they are; the embeddings are trained, as new characters need them.",
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder for the run, new or empty; by default runs/NAME, after the (first) "
            "text if it is given, else after the config; with a number if that is taken.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="A sweep, in runs/NAME-sweep: train with N seeds, from the config's on, and print "
            "the mean val loss and its standard error. Repeating the command resumes it.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="With a sweep: train N runs at once, on as many threads each as N leave them; by "
            "default one after the other.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="[RUN]",
            help="Resume a run, or a whole sweep, from the last checkpoints: its folder, or its "
            "name under runs/; by default the newest.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run or sweep that is in the folder.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Train nothing: print the parameters, and the memory and time that a run would "
            "take, measured on a short part of it.",
        ),
    ] = False,
    find_lr: Annotated[
        bool,
        typer.Option(
            "--find-lr",
            help="Train no run: try learning rates from a hundredth to a hundred times the "
            "config's, Muon's and AdamW's together, in 100 steps; print which to use, and draw the "
            "loss in runs/NAME-find-lr.png.",
        ),
    ] = False,
    show_config: Annotated[
        bool,
        typer.Option("--show-config", help="With --dry-run: print the resolved config as well."),
    ] = False,
    as_json: JsonFlag = False,
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
    swept = None if resume is None else find_sweep(resume or None)
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
        _print_estimate(settled, _with_start(estimate), as_json, show_config)
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
    chunks = api.load(outcome.run).sample([""], seed=config.seed, **config.sample.model_dump())
    if as_json:
        typer.echo(json.dumps(asdict(outcome) | {"sample": collect(chunks, [""])[0].text}))
        return
    loss, per_character = outcome.best_val_loss, outcome.best_val_loss_per_character
    of_bytes = "" if loss == per_character else f" per byte, {per_character:.4f} per character"
    typer.echo(
        f"\n{outcome.reason}: step {outcome.step} after {outcome.elapsed_s:.0f} s; best val loss "
        f"{loss:.4f}{of_bytes} ({per_character / math.log(2):.3f} bits per character, "
        f"{outcome.bits_per_byte:.3f} per byte) at step {outcome.best_step}"
    )
    typer.echo(f"watch:   {tensorboard(str(Path(outcome.run).parent))}")
    typer.echo(f"sample:  {command('sample', outcome.run)}\n")
    for text in in_order(chunks, [""]):
        show(text)


def _since_start() -> Callable[[], float]:
    """A clock: seconds since this process started."""
    import psutil

    start = time.perf_counter() - (time.time() - psutil.Process().create_time())
    return lambda: time.perf_counter() - start


def _with_start(estimate: "Estimate") -> "Estimate":
    """The same with the time that this process took before the probe: imports, the text."""
    from gpt.training.dry_run import Cost

    start = _since_start()() - estimate.probe_seconds
    costs = {"start": Cost(1, start)} | estimate.costs
    return replace(estimate, costs=costs, seconds=start + estimate.seconds)


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
