"""A sweep: the runs of all combinations of some settings and seeds, in one folder.

    runs/NAME-sweep/sweep.json                  what is to be trained, and by which configs
                    learning_rate-1e-3,seed-1337/   the folder of a run

What is done is seen from the runs alone: a sweep that was killed at any moment ends as if it had
never been.
"""

import json
import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpt.config.schema import Config
from gpt.device import select_device
from gpt.distributed.launch import check_alone
from gpt.errors import GPTError, Interrupted, UsageError, command, counted
from gpt.evaluation.loss import evaluate, scored_val, val_units
from gpt.files import write_atomically
from gpt.recipe.job import Job
from gpt.recipe.sweep_plan import (
    Asked,
    Load,
    Plan,
    PlannedRun,
    check_same,
    lent_sha256,
    new_plan,
    read_plan,
)
from gpt.recipe.workers import train_here, train_in_processes
from gpt.runs.find import SWEEP, is_run, is_sweep
from gpt.runs.folder import check_free, check_keeps, delete_sweep, make_folder
from gpt.runs.format import has_checkpoint
from gpt.runs.lock import locked
from gpt.runs.read import read_checkpoint, read_summary
from gpt.runs.weights import load_model
from gpt.status import phase
from gpt.text.corpus import Corpus
from gpt.text.standard_input import store_standard_input

log = logging.getLogger(__name__)

RESUMED_BY = ("steps", "rewarm_steps", "stop_at_val_loss", "patience")  # of train


@dataclass(frozen=True)
class SweepRun:
    """How a run ended: its best val loss, in nats per character, or what went wrong."""

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
        """The runs that did not end well."""
        return [run for each in self.combinations for run in each.runs if run.error is not None]


def run_sweep(
    folder: Path,
    asked: Sequence[Asked] | None,
    *,
    choose: Callable[[Config], Config] = lambda config: config,
    load: Load,
    jobs: int | None = None,
    overwrite: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] = lambda event: None,
) -> Sweep:
    """Train the runs that are not finished, `jobs` at a time, and compare all.

    A run that fails is told, and the others are trained.

    Args:
        folder: of the sweep; if it holds one, that is resumed.
        asked: the runs; without them, those of the sweep that is there.
        choose: the config to train by, of one that leaves things open.
        load: the text of a config, by a vocabulary if one is given.
        jobs: processes; the first time they decide the threads of each. Default as before, or 1.
        overwrite: replace the sweep that is there.
        on_event: called with the events of `gpt.training.trainer.train`, each with its `run`.

    Raises:
        UsageError: the folder holds another sweep, or something else; or what it began with, a
            text or another run's weights, has changed.
        ConfigError, DeviceError: a run cannot be trained; nothing is.
        Interrupted: `should_stop` returned True; what was trained is saved.
    """
    check_alone("a sweep, whose runs are processes of their own (--jobs),")
    typed, folder = folder, folder.absolute()  # wherever the caller changes to meanwhile
    plan = None
    if asked is not None and (overwrite or not is_sweep(folder)):
        if is_run(folder):
            raise UsageError(f"{typed} is the folder of a run; choose another --run-dir")
        if not is_sweep(folder):
            check_free(typed, overwrite=overwrite)
        for run in asked if overwrite else ():
            check_keeps(typed, run.config)
        plan = new_plan(asked, jobs or 1, choose, load, should_stop)
        if overwrite and is_sweep(folder):  # once nothing else can refuse to start
            delete_sweep(folder)
        make_folder(folder)
    with locked(folder) as check_in_place:
        if plan is not None and not is_sweep(folder):  # nor did another begin meanwhile
            check_in_place()
            write_atomically(folder / SWEEP, [plan.model_dump_json(indent=1).encode()])
        else:
            plan = read_plan(folder)
            if asked is not None:
                check_same(typed, plan, asked)
        corpora = [
            replace(corpus, standard_input=store_standard_input(corpus.standard_input, folder))
            for corpus in _corpora(folder, typed, plan, load)
        ]
        waiting = [
            Job(run.name, folder / run.name, run.config, corpus)
            for run, corpus in zip(plan.runs, corpora, strict=True)
            if not _is_finished(folder / run.name)
        ]
        log.info("%s: %s, %d to train", typed, counted(len(plan.runs), "run"), len(waiting))
        jobs = jobs or plan.jobs
        try:
            if min(jobs, len(waiting)) > 1:
                errors = train_in_processes(waiting, jobs, should_stop, on_event)
            else:
                errors = train_here(waiting, should_stop, on_event)
        except Interrupted:  # by a signal, whose exit code it will get
            done = sum(_is_finished(folder / run.name) for run in plan.runs)
            raise Interrupted(
                f"stopped: {done} of {counted(len(plan.runs), 'run')} finished; what others "
                f"trained is saved; resume with: {command('train', '--resume', str(typed))}"
            ) from None
        ended = [
            _ended(folder, typed, run, corpus, errors.get(run.name))
            for run, corpus in zip(plan.runs, corpora, strict=True)
        ]
        return Sweep(str(typed), _compared(plan, ended))


def _corpora(folder: Path, typed: Path, plan: Plan, load: Load) -> list[Corpus]:
    """The text of each run; runs of one text share it, as each is an open file."""
    shared: dict[tuple[object, ...], Corpus] = {}
    corpora = []
    for run in plan.runs:
        corpus = _corpus(folder, typed, run, load)
        ids = corpus.ids.filename if isinstance(corpus.ids, np.memmap) else id(corpus.ids)
        key = (ids, corpus.train_ids, corpus.vocabulary.to_json())
        corpora.append(shared.setdefault(key, corpus))
    if len({(corpus.sha256, corpus.val_characters) for corpus in corpora}) > 1:
        log.warning("val losses are of different texts: compare those of one val split alone")
    return corpora


def _corpus(folder: Path, typed: Path, run: PlannedRun, load: Load) -> Corpus:
    """The text of a run, which must be what it was when the sweep began; as must what it is lent.

    One that has begun has its weights, and is resumed by the run to distill that it began with.
    """
    try:
        vocabulary = read_summary(folder / run.name, "last").vocabulary
    except GPTError:  # there is none yet, or it is damaged
        vocabulary = None
    corpus = load(run.config, vocabulary)
    changed = [] if corpus.sha256 == run.text_sha256 else [corpus.name]
    for key, sha256 in lent_sha256(run.config).items() if vocabulary is None else ():
        if run.lent_sha256.get(key, sha256) != sha256:
            changed.append(f"the best checkpoint of {key}")
    if changed:
        raise UsageError(
            f"{changed[0]} has changed since {typed} began; bring the old one back, or start a "
            f"new sweep by --overwrite or another --run-dir"
        )
    return corpus


def _is_finished(run: Path) -> bool:
    try:
        return has_checkpoint(run) and read_summary(run, "last").finished
    except GPTError:  # damaged, say: what resumes it will repair or tell it
        return False


def _ended(
    folder: Path, typed: Path, planned: PlannedRun, corpus: Corpus, error: str | None
) -> SweepRun:
    run, seed, shown = folder / planned.name, planned.config.seed, str(typed / planned.name)
    if error is not None:
        return SweepRun(shown, seed, None, None, error)
    try:
        if changed := _resumed_otherwise(planned.config, read_summary(run, "last").config):
            removed = command("runs", "--delete", shown)
            return SweepRun(shown, seed, None, None, f"{changed}; to train it again: {removed}")
        best = read_summary(run, "best")
        loss = best.val_loss
        if loss is None:  # it was evaluated on a part
            model = load_model(read_checkpoint(run), select_device(planned.config.device))
            with phase(f"evaluating {run}"):
                loss = evaluate(model, scored_val(corpus), corpus.vocabulary)
    except GPTError as problem:
        return SweepRun(shown, seed, None, None, str(problem))
    return SweepRun(shown, seed, val_units(corpus).per_character(loss), best.step, None)


def _resumed_otherwise(planned: Config, trained: Config) -> str | None:
    """By which setting a run was resumed that the sweep does not have; None if by none.

    A run of minutes makes its own plans, so of such a one it is not known.
    """
    for key in () if planned.train.minutes else RESUMED_BY:
        before, now = getattr(planned.train, key), getattr(trained.train, key)
        if before != now:
            return f"it was resumed by train.{key}={now}, where the sweep has {before}"
    return None


def _compared(plan: Plan, ended: Sequence[SweepRun]) -> list[SweepResult]:
    """The combinations by their mean val loss; last those of which no run ended well."""
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
