"""`gpt train`."""

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt.cli.help import HelpAllFlag
from gpt.cli.options import DebugFlag, JsonFlag, show, tensorboard, wrapped
from gpt.cli.signals import StopSignals
from gpt.cli.sweep import print_sweep
from gpt.distributed.launch import is_launched, is_main
from gpt.errors import UsageError, command
from gpt.status import phase

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.training.dry_run import Estimate
    from gpt.training.outcome import Outcome


def train(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="A file, folder, glob, - for standard input, python-docs, python-source or "
            "tinyshakespeare, instead of data.source; several are joined. .gz, .bz2, .xz, .zst, "
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
        str | None, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.")
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Fine-tune a run: start from the weights of its best checkpoint, in a new run. "
            "Unless train.steps is set, it stops before the model overfits.",
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A new or empty folder for the run; default runs/NAME, where NAME is that of the "
            "text or else of the config.",
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
        typer.Option("--dry-run", help="Do not train: print parameters, memory and time."),
    ] = False,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="With --dry-run: print the config, too.")
    ] = False,
    as_json: JsonFlag = False,
    help_all: HelpAllFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Train a model on a text, then print a sample."""
    from gpt import api

    clock = _since_start()
    changes = [*(overrides or []), *([] if device is None else [f"device={device}"])]
    asked: dict[str, Any] = {"text": text, "minutes": minutes, "settings": changes}
    is_sweep = resume is None and (seeds is not None or api.is_sweep(changes))
    swept = None if resume is None else _sweep_to_resume(resume, **asked)
    new_only = config or init_from or run_dir or overwrite or dry_run or seeds
    for is_wrong, message in (
        (
            resume is not None and new_only,
            "--resume continues in the run's folder with the run's config; leave out --config, "
            "--init-from, --run-dir, --overwrite, --dry-run and --seeds, and change settings by "
            "--set",
        ),
        (
            jobs is not None and not (is_sweep or swept),
            "--jobs goes with a sweep: --seeds N, or --set with several values",
        ),
        (
            dry_run and is_sweep,
            "--dry-run does not work with a sweep; give one value of each setting and no --seeds",
        ),
        (
            show_config and not dry_run,
            "--show-config goes with --dry-run; a run's config is in its config.yaml",
        ),
    ):
        if is_wrong:
            raise UsageError(message)
    new = asked | {"config": config, "init_from": init_from}
    if dry_run:
        _print_estimate(*api.estimate(**new, clock=clock), as_json, show_config)
        return
    new |= {"run_dir": run_dir, "overwrite": overwrite}
    work: partial[Any]  # with should_stop and on_event still to be given
    if swept:
        work = partial(api.resume_sweep, swept, jobs=jobs)
    elif is_sweep:
        work = partial(api.sweep, **new, seeds=seeds, jobs=jobs)
    elif resume is not None:
        work = partial(api.resume, resume or None, **asked, clock=clock)
    else:
        work = partial(api.train, **new, clock=clock)
    with StopSignals(repeated=is_launched()) as signals:
        result: Any = work(should_stop=signals.should_stop, on_event=signals.on_event)
    if is_sweep or swept:
        print_sweep(result, as_json)
    elif is_main():
        _print_outcome(result, as_json)


def _since_start() -> Callable[[], float]:
    """Return a clock: seconds since this process started."""
    import psutil

    start = time.perf_counter() - (time.time() - psutil.Process().create_time())
    return lambda: time.perf_counter() - start


def _sweep_to_resume(
    name: str, text: list[str] | None, minutes: float | None, settings: list[str]
) -> Path | None:
    """Return the folder of the sweep that `--resume` means, or None if it means a run."""
    from gpt.runs.find import find_sweep

    swept = None if text and not name else find_sweep(name or None)
    if swept and (text or minutes is not None or settings):
        raise UsageError(
            f"{swept} is a sweep, whose settings cannot change; leave out all but --resume and "
            f"--jobs, or resume one of its runs by name"
        )
    return swept


def _print_outcome(outcome: "Outcome", as_json: bool) -> None:
    """Print the run's scores, how to watch and sample it, and a sample of its best model."""
    from gpt import api
    from gpt.runs.read import read_summary
    from gpt.sampling.stopping import collect, in_order

    # the newest config: a resume may have changed the sampling rules since the best checkpoint
    config = read_summary(Path(outcome.run), "last").config
    with phase("loading the best checkpoint"):
        model = api.load(outcome.run)
    rules = config.sample.model_dump(exclude={"length"})
    chunks = model.sample([""], length=config.sample.length, seed=config.seed, rules=rules)
    if as_json:
        typer.echo(json.dumps(asdict(outcome) | {"sample": collect(chunks, [""])[0].text}))
        return
    typer.echo(f"\n{wrapped(_ending(outcome), sys.stdout)}")
    typer.echo(wrapped(_scores(outcome), sys.stdout))
    typer.echo(f"watch:   {tensorboard(str(Path(outcome.run).parent))}")
    typer.echo(f"sample:  {command('sample', outcome.run)}\n")
    for text in in_order(chunks, [""]):
        show(text)


def _ending(outcome: "Outcome") -> str:
    """Return why and at which step training ended, and the best val loss."""
    loss, per_character = outcome.best_val_loss, outcome.best_val_loss_per_character
    unit = "" if loss == per_character else f" per byte, {per_character:.4f} per character"
    where = f"step {outcome.step} after {outcome.elapsed_s:.0f} s"
    is_done = outcome.reason == "all steps done"
    ending = f"all steps done: {where}" if is_done else f"stopped at {where}: {outcome.reason}"
    sampled = ", which `gpt sample` uses" if is_done and outcome.best_step < outcome.step else ""
    return f"{ending}; best val loss {loss:.4f}{unit} at step {outcome.best_step}{sampled}"


def _scores(outcome: "Outcome") -> str:
    """Return the bits per character of the model, of a trigram model and of xz."""
    bits = outcome.best_val_loss_per_character / math.log(2)
    scores = f"{bits:.3f} bits per character ({outcome.bits_per_byte:.3f} per byte)"
    xz, trigram = outcome.xz_bits_per_character, outcome.trigram_bits_per_character
    if trigram is None:
        return f"{scores}; xz needs {xz:.2f}"
    return f"{scores}; a trigram model needs {trigram:.2f}, xz {xz:.2f}"


def _print_estimate(
    config: "Config", estimate: "Estimate", as_json: bool, show_config: bool
) -> None:
    """Print parameters, memory and time by part, and on request the config."""
    if as_json:
        typer.echo(json.dumps({"config": config.model_dump()} | asdict(estimate)))
        return
    rows = [("parameters", f"{sum(estimate.parameters.values()):,}")]
    rows += [(f"  {part:<18}", f"{count:>13,}") for part, count in estimate.parameters.items()]
    mib = 2**20
    rows.append(("memory", f"{estimate.peak_bytes / mib:,.0f} MiB at most"))
    rows.append((f"  {'model, optimizer':<18}", f"{estimate.state_bytes / mib:>13,.1f} MiB"))
    where = f"on {estimate.device} in {estimate.precision}"
    rows.append(("time", f"{_duration(estimate.seconds)} {where}"))
    for name, cost in estimate.costs.items():
        times = f"{cost.count:,} x " if cost.count > 1 else ""
        rows.append((f"  {name:<18}", f"{times + _duration(cost.seconds):>15}"))
    for label, value in rows:
        typer.echo(f"{label:<12}{value}")
    if show_config:
        from gpt.config.yaml import to_yaml

        typer.echo(f"\n{to_yaml(config)}")


def _duration(seconds: float) -> str:
    """Format seconds: `2.3 h`, `4.5 min`, `6.7 s` or `8.9 ms`."""
    for unit, size, least in (("h", 3600, 2), ("min", 60, 2), ("s", 1, 1)):
        if seconds >= least * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{1000 * seconds:.1f} ms"
