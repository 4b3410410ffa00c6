"""The command `gpt train`: train or resume a run or a sweep."""

import time
from functools import partial
from pathlib import Path
from typing import Any

from gpt.cli.help import HelpAllFlag
from gpt.cli.options import DebugFlag, JsonFlag, Settings, TextNames, flag, option
from gpt.cli.results import print_estimate, print_outcome, print_sweep
from gpt.cli.signals import StopSignals
from gpt.distributed.launch import is_launched, is_main
from gpt.errors import UsageError


def train(
    text: TextNames = None,
    config: Path | None = option(
        "FILE",
        "A YAML file of settings, or the name of a shipped one, such as quickstart. Without it, "
        "settings are chosen for your text and time; with train.steps, defaults are used.",
    ),
    minutes: float | None = option(
        "N",
        "Train until the whole command has taken N minutes. Default 5, unless --config or "
        "train.steps is given. With --resume, a finished run trains for N more minutes; for an "
        "interrupted run, N is the time of the whole run.",
    ),
    overrides: Settings = None,
    device: str | None = option("DEVICE", "auto, cpu, cuda, cuda:N or mps."),
    init_from: str | None = option(
        "RUN",
        "Fine-tune a run: start from the weights of its best checkpoint, in a new run. Unless "
        "train.steps is set, it stops before the model overfits.",
    ),
    run_dir: Path | None = option(
        "DIR",
        "A new or empty folder for the run; default runs/NAME, named after the text or config.",
    ),
    seeds: int | None = option(
        "N",
        "A sweep: train with N seeds, and print the mean val loss and its standard error. "
        "Repeating the command resumes it.",
        min=1,
    ),
    jobs: int | None = option(
        "N", "Train N runs of a sweep at once, which divide the CPU threads.", min=1
    ),
    resume: str | None = option(
        "[RUN]",
        "Resume a run or sweep: its folder, or its name under runs/; default the newest, or the "
        "newest of TEXT.",
    ),
    overwrite: bool = flag("--overwrite", "Replace the run or sweep in that folder."),
    dry_run: bool = flag(
        "--dry-run",
        "Do not train: print parameters, memory and time.",
    ),
    as_json: JsonFlag = False,
    help_all: HelpAllFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Train a model on a text, then print a sample."""
    import psutil

    from gpt import api
    from gpt.recipe.train_command import sweep_has_ended
    from gpt.runs.find import find_sweep

    start = psutil.Process().create_time() - time.time() + time.perf_counter()
    changes = [*(overrides or []), *([] if device is None else [f"device={device}"])]
    is_sweep = resume is None and (seeds is not None or api.is_sweep(changes))
    is_named = resume is not None and (resume or not text)
    swept = find_sweep(resume or None) if is_named else None
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
            f"{swept} is a sweep, whose settings cannot change; leave out all but --resume and "
            f"--jobs, or resume one of its runs by name",
        ),
        (
            jobs is not None and not (is_sweep or swept),
            "--jobs goes with a sweep: --seeds N, or --set with several values",
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
        print_estimate(*api.estimate(**new, clock=clock), as_json)
        return
    new |= {"run_dir": run_dir, "overwrite": overwrite}
    work: partial[Any]
    if swept:
        work = partial(api.resume_sweep, swept, jobs=jobs)
    elif is_sweep:
        work = partial(api.sweep, **new, seeds=seeds, jobs=jobs)
    elif resume is not None:
        work = partial(api.resume, resume or None, **asked, clock=clock)
    else:
        work = partial(api.train, **new, clock=clock)
    with StopSignals(repeated=is_launched()) as signals:
        result: Any = work(should_stop=lambda: signals.should_stop() or sweep_has_ended())
    if is_sweep or swept:
        print_sweep(result, as_json)
    elif is_main():
        print_outcome(result, as_json)
