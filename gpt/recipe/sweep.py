"""A sweep: the runs of all combinations of some settings and seeds, in one folder.

    runs/NAME-sweep/sweep.json                      the plan: the runs and their configs
                    learning_rate-1e-3,seed-1337/   the folder of a run

Only the runs themselves say what is done, so a sweep can be killed at any moment and resumed.
"""

import json
import logging
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpt.config.schema import Config
from gpt.device import select_device
from gpt.distributed.launch import check_alone
from gpt.errors import GPTError, Interrupted, UsageError, command, counted
from gpt.evaluation.loss import evaluate, scored_val, val_units
from gpt.files import from_here, write_atomically
from gpt.recipe.grid import AskedRun
from gpt.recipe.sweep_jobs import SweepJob, train_at_once, train_in_turn
from gpt.recipe.sweep_plan import (
    Load,
    PlannedRun,
    SweepPlan,
    check_same,
    new_plan,
    read_plan,
    source_sha256,
)
from gpt.runs.find import SWEEP, is_run, is_sweep
from gpt.runs.folder import check_free, check_keeps, delete_sweep, make_folder
from gpt.runs.format import has_checkpoint
from gpt.runs.lock import locked
from gpt.runs.read import read_checkpoint, read_summary
from gpt.runs.recovery import recover, summary_to_resume
from gpt.runs.weights import load_model
from gpt.status import phase
from gpt.text.corpus import Corpus
from gpt.text.standard_input import store_standard_input

log = logging.getLogger(__name__)

COMPARED_SETTINGS = ("steps", "stop_at_val_loss", "patience")  # of train; a resume may change them


@dataclass(frozen=True)
class SweepRun:
    """How a run ended: with its best val loss in nats per character, or with an error."""

    run: str
    seed: int
    val_loss: float | None
    best_step: int | None
    error: str | None


@dataclass(frozen=True)
class SweepResult:
    """A combination of values: the mean val loss over its seeds, and its standard error."""

    values: dict[str, str]
    mean: float | None
    standard_error: float | None
    runs: list[SweepRun]


@dataclass(frozen=True)
class Sweep:
    """How a sweep ended: its combinations, the lowest mean val loss first."""

    sweep: str
    combinations: list[SweepResult]

    @property
    def failed(self) -> list[SweepRun]:
        """The runs that ended with an error."""
        return [run for each in self.combinations for run in each.runs if run.error is not None]


def run_sweep(
    folder: Path,
    asked: Sequence[AskedRun] | None,
    *,
    choose: Callable[[Config], Config] = lambda config: config,
    load: Load,
    jobs: int | None = None,
    overwrite: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] = lambda event: None,
) -> Sweep:
    """Train the runs of a sweep that are not finished, and compare all.

    A run that fails does not end the others.

    Args:
        folder: the folder of the sweep. If it holds one, that is resumed.
        asked: the runs; None: those of the sweep in `folder`.
        choose: returns the config to train with, given one with open settings.
        load: reads the text of a config.
        jobs: the number of runs to train at once. In a new sweep the threads are divided among
            them. Default: as before, or 1.
        overwrite: replace the sweep in `folder`.
        should_stop: see `gpt.api.train`.
        on_event: see `train_in_turn` and `train_at_once`.

    Raises:
        UsageError: `folder` holds something else, or a text or the weights of a source run have
            changed.
        ConfigError, DeviceError: a run cannot be trained; none was.
        Interrupted: `should_stop` returned True. What was trained is saved.
    """
    check_alone("a sweep, whose runs are processes of their own (--jobs),")
    folder = folder.absolute()  # the caller may change the working folder
    plan = None
    if asked is not None and (overwrite or not is_sweep(folder)):
        if is_run(folder):
            raise UsageError(
                f"{from_here(folder)} is the folder of a run; choose another --run-dir"
            )
        if not is_sweep(folder):
            check_free(from_here(folder), overwrite=overwrite)
        for run in asked if overwrite else ():
            check_keeps(from_here(folder), run.config)
        plan = new_plan(asked, jobs or 1, choose, load, should_stop)
        if overwrite and is_sweep(folder):  # nothing after this can refuse to start
            delete_sweep(folder)
        make_folder(folder)
    with locked(folder) as check_in_place:
        if plan is not None and not is_sweep(folder):  # no other process has begun one meanwhile
            check_in_place()
            write_atomically(folder / SWEEP, [plan.model_dump_json(indent=1).encode()])
        else:
            plan = read_plan(folder)
            if asked is not None:
                check_same(from_here(folder), plan, asked)
        corpora = [
            replace(corpus, standard_input=store_standard_input(corpus.standard_input, folder))
            for corpus in _corpora(folder, plan, load)
        ]
        waiting = [
            SweepJob(run.name, folder / run.name, run.config, corpus)
            for run, corpus in zip(plan.runs, corpora, strict=True)
            if not _is_finished(folder / run.name)
        ]
        log.info(
            "%s: %s, %d to train", from_here(folder), counted(len(plan.runs), "run"), len(waiting)
        )
        jobs, shown = min(jobs or plan.jobs, len(waiting)), str(from_here(folder))
        try:
            if jobs > 1:
                errors = train_at_once(waiting, jobs, should_stop, on_event)
            else:
                errors = train_in_turn(waiting, should_stop, on_event)
        except Interrupted:
            done = sum(_is_finished(folder / run.name) for run in plan.runs)
            raise Interrupted(
                f"stopped: {done} of {counted(len(plan.runs), 'run')} finished, the training of "
                f"the others is saved; resume with: {command('train', '--resume', shown)}"
            ) from None
        ended = [
            _ended(folder / run.name, run.config, corpus, errors.get(run.name))
            for run, corpus in zip(plan.runs, corpora, strict=True)
        ]
        return Sweep(shown, _compared(plan, ended))


def _corpora(folder: Path, plan: SweepPlan, load: Load) -> list[Corpus]:
    """Return the text of each run. Runs with the same text share one, as each is an open file."""
    shared: dict[tuple[object, ...], Corpus] = {}
    corpora = []
    for run in plan.runs:
        corpus = _corpus(folder, run, load)
        ids = corpus.ids.filename if isinstance(corpus.ids, np.memmap) else id(corpus.ids)
        key = (ids, corpus.train_ids, corpus.vocabulary.to_json())
        corpora.append(shared.setdefault(key, corpus))
    if len({(corpus.sha256, corpus.val_characters) for corpus in corpora}) > 1:
        log.warning("val losses are of different texts; compare only those of the same val split")
    return corpora


def _corpus(folder: Path, run: PlannedRun, load: Load) -> Corpus:
    """Return the text of a run.

    Raises UsageError if the text has changed since the sweep began; or, for a run without a
    checkpoint, the weights of a source run.
    """
    try:
        vocabulary = read_summary(folder / run.name, "last").vocabulary
    except GPTError:  # there is no checkpoint yet, or it is damaged
        vocabulary = None
    corpus = load(run.config, vocabulary)
    changed = [] if corpus.sha256 == run.text_sha256 else [corpus.name]
    if vocabulary is None:
        for key, sha256 in source_sha256(run.config).items():
            if run.source_sha256.get(key, sha256) != sha256:
                changed.append(f"the best checkpoint of {key}")
    if changed:
        raise UsageError(
            f"{changed[0]} has changed since {from_here(folder)} began; bring the old one back, "
            f"or start a new sweep by --overwrite or another --run-dir"
        )
    return corpus


def _is_finished(run: Path) -> bool:
    """Return whether a run is finished. If its last checkpoint is not in its index, repair that."""
    with suppress(GPTError):  # damaged, or in use: training it reports that
        if not has_checkpoint(run):
            return False
        with suppress(GPTError):
            if read_summary(run, "last").finished:
                return True
        if summary_to_resume(run).finished:
            with locked(run):
                return recover(run)[0].finished
    return False


def _ended(run: Path, config: Config, corpus: Corpus, error: str | None) -> SweepRun:
    """Return how a run ended.

    Args:
        run: its folder.
        config: its config in the plan.
        corpus: its text.
        error: the message of its training, if that failed.
    """
    seed, shown = config.seed, str(from_here(run))
    try:
        error = error or _other_settings(config, read_summary(run, "last").config, shown)
        if error is not None:
            return SweepRun(shown, seed, None, None, error)
        best = read_summary(run, "best")
        loss = best.val_loss
        if loss is None:  # it was evaluated on a part of val
            model = load_model(read_checkpoint(run), select_device(config.device))
            with phase(f"evaluating {run}"):
                loss = evaluate(model, scored_val(corpus), corpus.vocabulary)
    except GPTError as problem:
        return SweepRun(shown, seed, None, None, str(problem))
    return SweepRun(shown, seed, val_units(corpus).per_character(loss), best.step, None)


def _other_settings(planned: Config, trained: Config, shown: str) -> str | None:
    """Return a message if a run was resumed with other settings than the sweep's, else None.

    A run of minutes makes its own plans, so it is not compared.
    """
    for key in () if planned.train.minutes else COMPARED_SETTINGS:
        before, now = getattr(planned.train, key), getattr(trained.train, key)
        if before != now:
            return (
                f"it was resumed by train.{key}={now}, where the sweep has {before}; to train it "
                f"again: {command('runs', '--delete', shown)}"
            )
    return None


def _compared(plan: SweepPlan, ended: Sequence[SweepRun]) -> list[SweepResult]:
    """Return the combinations by their mean val loss; last those whose runs all failed."""
    groups: dict[str, tuple[dict[str, str], list[SweepRun]]] = {}
    for planned, run in zip(plan.runs, ended, strict=True):
        values = {key: value for key, value in planned.values.items() if key != "seed"}
        groups.setdefault(json.dumps(values), (values, []))[1].append(run)
    results = []
    for values, runs in groups.values():
        losses = [run.val_loss for run in runs if run.val_loss is not None]
        mean = statistics.fmean(losses) if losses else None
        error = statistics.stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else None
        results.append(SweepResult(values, mean, error, runs))
    return sorted(results, key=lambda result: (result.mean is None, result.mean))
