"""A sweep: the runs of all combinations of some settings and seeds, in one folder.

    runs/NAME-sweep/sweep.json           the plan: the runs and their configs
                    lr-1e-3,seed-1337/   the folder of a run

The checkpoints record which runs are finished, so a sweep can be killed and resumed at any moment.
"""

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import torch

from gpt.config.load import load_config, typed_value
from gpt.config.schema import SETTINGS, Config
from gpt.device import select_device
from gpt.distributed.launch import check_alone
from gpt.errors import ConfigError, GPTError, Interrupted, UsageError, command
from gpt.evaluation.intervals import seed_mean
from gpt.evaluation.loss import evaluate, scored_val, val_units
from gpt.files import from_here, write_atomically
from gpt.recipe.sweep_plan import PlannedRun, SweepPlan, check_same, read_plan
from gpt.recipe.train_command import train_by_command
from gpt.runs.find import SWEEP, is_run, is_sweep
from gpt.runs.folder import check_free, check_keeps, delete_sweep, make_folder
from gpt.runs.format import has_checkpoint
from gpt.runs.lock import locked
from gpt.runs.read import read_checkpoint, read_summary
from gpt.runs.recovery import recover, summary_to_resume
from gpt.runs.weights import load_model
from gpt.status import phase
from gpt.text.corpus import Corpus
from gpt.text.standard_input import reads_standard_input, standard_input, store_standard_input
from gpt.training.start import train
from gpt.training.teacher import check_teacher

log = logging.getLogger(__name__)

Load = Callable[[Config, Path | None], Corpus]
"""Reads the text of a config. The folder, if given, may have a copy of standard input."""


@dataclass(frozen=True)
class SweepRun:
    """Result of a run: its best val loss in nats per character, or the message of an error."""

    run: str
    seed: int
    val_loss: float | None = None
    best_step: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class SweepResult:
    """Results of the runs that differ only by seed. Losses are in nats per character."""

    values: dict[str, str]  # value of each setting that the sweep varies
    mean: float | None  # of the val losses; None if unknown
    standard_error: float | None
    runs: list[SweepRun]


@dataclass(frozen=True)
class Sweep:
    """Result of a sweep: its combinations of settings, the lowest mean val loss first."""

    sweep: str
    combinations: list[SweepResult]

    @property
    def failed(self) -> list[SweepRun]:
        """The runs that ended with an error."""
        return [run for each in self.combinations for run in each.runs if run.error is not None]


def run_sweep(
    folder: Path,
    asked: Sequence[PlannedRun] | None,
    *,
    choose: Callable[[Config], Config] = lambda config: config,
    load: Load,
    jobs: int | None = None,
    overwrite: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] = lambda event: None,
) -> Sweep:
    """Train the runs of a sweep that are not finished, and compare all runs.

    Args:
        folder: the folder of the sweep. If it contains a sweep, that sweep is resumed.
        asked: the runs of the sweep; None for the runs of the sweep that is in `folder`.
        choose: returns a config with its unset settings chosen for the text and the time.
        load: reads the text of a config.
        jobs: the number of runs to train at once. A new sweep divides the threads among them.
            Default: the number in the sweep that is resumed, or 1.
        overwrite: replace the sweep in `folder`.
        should_stop: returns whether to stop; see `gpt.api.train`.
        on_event: called with each event of `gpt.api.train`. Its key `run` is the run's name.
            It is not called if several runs train at once, because they use other processes.

    Raises:
        UsageError: `folder` is in use, or contains other runs.
        ConfigError, DeviceError: a run cannot be trained. No run was started.
        Interrupted: `should_stop` returned True. The training so far is saved.
    """
    check_alone("a sweep, which trains several runs,")
    folder = folder.absolute()  # the caller may change the working folder
    shown, plan = from_here(folder), None
    if asked is not None and (overwrite or not is_sweep(folder)):
        _check_folder(shown, asked, overwrite)
        plan = new_plan(asked, jobs or 1, choose, load, should_stop)
        if overwrite and is_sweep(folder):  # after all checks
            delete_sweep(folder)
        make_folder(folder)
    with locked(folder):
        if plan is not None and not is_sweep(folder):  # no other process began one meanwhile
            write_atomically(folder / SWEEP, [plan.model_dump_json(indent=1).encode()])
        else:
            plan = read_plan(folder)
            if asked is not None:
                check_same(shown, plan, asked)
        stored_in = None if asked is not None else folder
        for run in plan.runs:
            if reads_standard_input(run.config.data):
                store_standard_input(standard_input(stored_in), folder)
        jobs = min(jobs or plan.jobs, len(plan.runs))
        finish = partial(
            _finish,
            sweep=folder,
            load=lambda config: load(config, stored_in),
            on_event=on_event,
            as_command=jobs > 1,
        )
        try:
            if jobs == 1:
                ended = [finish(run, should_stop) for run in plan.runs]
            else:
                ended = _at_once(plan.runs, finish, jobs, should_stop)
        except Interrupted:
            again = command("train", "--resume", str(shown))
            raise Interrupted(f"stopped, saved; resume with: {again}") from None
        return Sweep(str(shown), _compared(plan, ended))


def _check_folder(folder: Path, asked: Sequence[PlannedRun], overwrite: bool) -> None:
    if is_run(folder):
        raise UsageError(f"{folder} is the folder of a run; choose another --run-dir")
    if not is_sweep(folder):
        check_free(folder, overwrite=overwrite)
    for run in asked if overwrite else ():
        check_keeps(folder, run.asked)


def new_plan(
    asked: Sequence[PlannedRun],
    jobs: int,
    choose: Callable[[Config], Config],
    load: Load,
    should_stop: Callable[[], bool],
) -> SweepPlan:
    """Return the plan of a new sweep; for the arguments see `run_sweep`.

    Unset settings are chosen once for all runs that differ only in training settings, so that these
    runs have the same model. Runs of another text, time or model get another choice.
    """
    threads = max(1, torch.get_num_threads() // min(jobs, len(asked)))
    chosen: dict[str, Config] = {}
    runs = []
    for run in asked:
        if should_stop():
            raise Interrupted("stopped before the first run began; nothing is written")
        config = run.asked
        if config.threads == "auto":
            config = config.model_copy(update={"threads": threads})
        if run.is_open:
            config = _chosen(run, config, chosen, choose)
        corpus = load(config, None)
        select_device(config.device)
        check_teacher(config, corpus.vocabulary)
        runs.append(run.model_copy(update={"config": config, "text_sha256": corpus.sha256}))
    return SweepPlan(jobs=jobs, runs=runs)


def _chosen(
    run: PlannedRun, config: Config, chosen: dict[str, Config], choose: Callable[[Config], Config]
) -> Config:
    """Return `config` with its unset settings set by `choose`. `chosen` caches the results."""
    own = {  # settings that do not affect the choice of the model
        key: value
        for key, value in run.values.items()
        if (key == "seed" or key.startswith("train.")) and not SETTINGS[key].affects_choice
    }
    shared = json.dumps({key: value for key, value in run.values.items() if key not in own})
    if shared not in chosen:
        try:
            without_own = load_config(config, [f"{key}=null" for key in own])
        except ConfigError:  # other settings need them
            without_own = config
        chosen[shared] = choose(without_own)
    changes = [f"{k}={v}" for k, v in own.items() if typed_value(k, v) is not None]
    if "muon_learning_rate" in config.train.model_fields_set:  # do not scale it
        changes.append(f"train.muon_learning_rate={config.train.muon_learning_rate}")
    return load_config(chosen[shared], changes)


def _at_once(
    runs: Sequence[PlannedRun],
    finish: Callable[[PlannedRun, Callable[[], bool]], SweepRun],
    jobs: int,
    should_stop: Callable[[], bool],
) -> list[SweepRun]:
    """Call `finish` for each run, in `jobs` threads. If one raises Interrupted, stop all."""
    is_over = Event()

    def finish_one(run: PlannedRun) -> SweepRun:
        try:
            return finish(run, lambda: is_over.is_set() or should_stop())
        except Interrupted:
            is_over.set()
            raise

    with ThreadPoolExecutor(jobs) as pool:
        try:
            return [*pool.map(finish_one, runs)]
        finally:  # also after a KeyboardInterrupt of this thread
            is_over.set()
            pool.shutdown(cancel_futures=True)


def _finish(
    planned: PlannedRun,
    should_stop: Callable[[], bool],
    *,
    sweep: Path,
    load: Callable[[Config], Corpus],
    on_event: Callable[[dict[str, Any]], object],
    as_command: bool,
) -> SweepRun:
    """Train or resume the run `planned` in the folder `sweep`, unless this run is finished.

    With `as_command`, a `gpt train` process trains the run, and `on_event` is not called.
    """
    run = sweep / planned.name
    ended = SweepRun(str(from_here(run)), planned.config.seed)
    if should_stop():
        raise Interrupted("stopped")
    try:
        corpus = load(planned.config)
        if corpus.sha256 != planned.text_sha256:
            raise UsageError(
                f"{corpus.name} has changed since {from_here(sweep)} began; bring the old text "
                f"back, or start a new sweep by --overwrite or another --run-dir"
            )
        newest = summary_to_resume(run) if has_checkpoint(run) else None
        if newest and newest.finished:
            with locked(run):
                recover(run)  # a kill may have left an old index
        elif as_command:
            log.info("%s: training in its own process", run.name)
            train_by_command(
                planned.config,
                run,
                resume=newest is not None,
                standard_input=corpus.standard_input,
                should_stop=should_stop,
            )
        else:
            log.info("%s: training", run.name)
            train(
                newest.config if newest else planned.config,  # this has the train.plans of the run
                corpus,
                run,
                "resume" if newest else "overwrite",  # a kill may have left an empty folder
                should_stop=should_stop,
                on_event=lambda event: on_event(event | {"run": run.name}),
            )
        best = read_summary(run, "best")
        loss = best.val_loss
        if loss is None:  # only a part of val was evaluated
            checkpoint, val = read_checkpoint(run), scored_val(corpus)
            model = load_model(checkpoint, select_device(planned.config.device))
            with phase(f"evaluating {run}"):
                loss = evaluate(model, val, corpus.vocabulary)
        loss = val_units(corpus).per_character(loss)
        log.info("%s: val loss %.4f", planned.name, loss)
        return replace(ended, val_loss=loss, best_step=best.step)
    except Interrupted:
        raise
    except Exception as error:  # any error: the other runs are still trained
        message = str(error) if isinstance(error, GPTError) else f"{type(error).__name__}: {error}"
        log.warning("%s failed: %s", run.name, message)
        return replace(ended, error=message)


def _compared(plan: SweepPlan, ended: Sequence[SweepRun]) -> list[SweepResult]:
    """Group the runs that differ only by seed. Sort by mean val loss, failed groups last."""
    if len({(run.text_sha256, run.config.data.val_fraction) for run in plan.runs}) > 1:
        log.warning("val losses are of different texts; compare only those of the same val split")
    groups: dict[str, SweepResult] = {}
    for planned, run in zip(plan.runs, ended, strict=True):
        values = {key: value for key, value in planned.values.items() if key != "seed"}
        groups.setdefault(str(values), SweepResult(values, None, None, [])).runs.append(run)
    for key, group in groups.items():
        if mean := seed_mean([run.val_loss for run in group.runs if run.val_loss is not None]):
            groups[key] = replace(group, mean=mean.mean, standard_error=mean.standard_error)
    return sorted(groups.values(), key=lambda result: (result.mean is None, result.mean))
