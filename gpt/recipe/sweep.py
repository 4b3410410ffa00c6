"""A sweep: the runs of all combinations of some settings and seeds, in one folder.

    runs/NAME-sweep/sweep.json           its trials: the names and configs of the runs
                    lr-1e-3,seed-1337/   the folder of a run

`specify` makes the trials, `train_trials` trains one after another, and `summarise` compares them.
The checkpoints record which runs are finished, so a sweep can be killed and resumed at any moment.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpt.config.load import load_config
from gpt.config.schema import SETTINGS, Config, explicit, values
from gpt.config.yaml import differences
from gpt.device import default_threads, select_device
from gpt.distributed import check_alone
from gpt.errors import ConfigError, GPTError, Interrupted, UsageError, arguments
from gpt.evaluation.intervals import seed_mean
from gpt.evaluation.loss import evaluate, scored_val, val_units
from gpt.files import from_here
from gpt.recipe.sweep_spec import SweepSpec, Trial, check_same, read_spec, write_spec
from gpt.runs.folder import check_free, is_sweep
from gpt.runs.format import has_checkpoint
from gpt.runs.lock import locked
from gpt.runs.read import read_checkpoint
from gpt.runs.recovery import recover, summary_to_resume
from gpt.runs.weights import load_model
from gpt.terminal import phase
from gpt.text.cache import reads_standard_input, store_standard_input
from gpt.text.corpus import Corpus
from gpt.training.callbacks import OnEvent
from gpt.training.start import train_run

log = logging.getLogger(__name__)

Load = Callable[[Config], Corpus]


@dataclass(frozen=True)
class SweepRun:
    """Result of a run: its best val loss in nats per character, or the message of an error."""

    run: str
    seed: int
    val_loss: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class SweepResult:
    """Results of the runs that differ only by seed. Losses are in nats per character."""

    values: dict[str, str]  # value of each setting that the sweep varies
    mean: float | None  # mean of the known val losses; None if there are none
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
    asked: Sequence[Trial] | None,
    *,
    choose: Callable[[Config], Config] = lambda config: config,
    load: Load,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: OnEvent = lambda event: None,
) -> Sweep:
    """Specify a new sweep, or read the one in `folder`; train and summarise it.

    If `asked` is None, resume the sweep in `folder`. `choose` returns a config with its unset
    settings chosen for the text and the time. `gpt.api.sweep` lists the errors raised.
    """
    check_alone("a sweep, which trains several runs,")
    folder = folder.absolute()  # the caller may change the working folder
    shown, new = from_here(folder), None
    if asked is not None and not is_sweep(folder):
        check_free(shown, overwrite=False)
        new = specify(asked, choose, load, should_stop)
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if new is not None and not is_sweep(folder):  # another process may have written a sweep
            write_spec(folder, new)
        spec = read_spec(folder)
        if asked is not None:
            check_same(shown, spec, asked)
        return summarise(folder, spec, train_trials(folder, spec, load, should_stop, on_event))


def specify(
    asked: Sequence[Trial],
    choose: Callable[[Config], Config],
    load: Load,
    should_stop: Callable[[], bool],
) -> SweepSpec:
    """Return the specification of a new sweep: the trials `asked`, each with its config.

    Unset settings are chosen once for all runs that differ only in training settings, so that these
    runs have the same model. Another text, time or model setting needs another choice. The
    number of threads is stored, because the last digits of a loss depend on it.
    """
    choices: dict[str, Config] = {}
    trials = []
    for trial in asked:
        if should_stop():
            raise Interrupted("stopped before the first run began; nothing was written")
        config = trial.asked
        if config.threads == "auto":
            config = config.model_copy(update={"threads": default_threads()})
        if trial.is_open:
            config = _chosen(trial, config, choose, choices)
        corpus = load(config)
        select_device(config.device)
        trials.append(trial.model_copy(update={"config": config, "text_sha256": corpus.sha256}))
    return SweepSpec(runs=trials)


def _chosen(
    trial: Trial, config: Config, choose: Callable[[Config], Config], choices: dict[str, Config]
) -> Config:
    """Return `config` with its unset settings set by `choose`. `choices` caches the results."""
    own = {  # settings that do not affect the choice of the model
        key
        for key in trial.values
        if (key == "seed" or key.startswith("train.")) and not SETTINGS[key].affects_choice
    }
    shared = str({key: value for key, value in trial.values.items() if key not in own})
    if shared not in choices:
        without_own = config
        with suppress(ConfigError):  # if the config is invalid without `own`, leave it unchanged
            without_own = load_config(config, [(key, None) for key in own])
        choices[shared] = choose(without_own)
    return load_config(choices[shared], [*explicit(config).items()])


def train_trials(
    folder: Path, spec: SweepSpec, load: Load, should_stop: Callable[[], bool], on_event: OnEvent
) -> list[SweepRun]:
    """Train each unfinished run of a sweep; return the results of all runs.

    If a run fails, the others are still trained. If `should_stop` returns True, raise Interrupted.
    """
    if piped := [trial for trial in spec.runs if reads_standard_input(trial.config.data)]:
        store_standard_input(load(piped[0].config).standard_input, folder)
    results = []
    for trial in spec.runs:
        run = folder / trial.name
        result = SweepRun(str(from_here(run)), trial.config.seed)
        try:
            if should_stop():
                raise Interrupted
            corpus = load(trial.config)
            if corpus.sha256 != trial.text_sha256:
                raise UsageError(
                    f"{corpus.name} has changed since the sweep {from_here(folder)} began; restore "
                    f"the old text, or start a new sweep with another {arguments('run_dir')}"
                )
            _train(trial, corpus, run, should_stop, on_event)
            result = _scored(result, run, corpus, trial.config.device)
            log.info("%s: val loss %.4f", trial.name, result.val_loss)
        except Interrupted:
            place = from_here(folder)
            raise Interrupted(
                f"stopped; the sweep {place} is saved; to resume it, repeat the command or call"
            ) from None
        except Exception as error:  # any error: the other runs are still trained
            kind = "" if isinstance(error, GPTError) else f"{type(error).__name__}: "
            result = replace(result, error=f"{kind}{error}")
            log.warning("%s failed: %s", trial.name, result.error)
        results.append(result)
    return results


def _train(
    trial: Trial, corpus: Corpus, run: Path, should_stop: Callable[[], bool], on_event: OnEvent
) -> None:
    """Train or resume a run, unless it is finished."""
    newest = summary_to_resume(run) if has_checkpoint(run) else None
    if newest:
        _check_unchanged(trial.config, newest.config)
    if newest and newest.finished:
        with locked(run):
            recover(run)  # a killed run may have left an old index of checkpoints
        return
    log.info("%s: training", trial.name)
    train_run(
        newest.config if newest else trial.config,  # only a checkpoint's config has `train.plans`
        corpus,
        run,
        "resume" if newest else "overwrite",  # a killed run may lack a checkpoint
        should_stop=should_stop,
        on_event=lambda event: on_event(event | {"run": trial.name}),
    )


def _check_unchanged(config: Config, now: Config) -> None:
    """Raise UsageError if a run's config `now` differs from its trial's `config`.

    Paths of the text may differ, and so may settings that training changes: `train.compile` and, if
    `train.minutes` is set, the plan of steps and evaluations.
    """
    free = {"data.source", "data.val_source", "train.plans", "train.compile"}
    if config.train.minutes is not None:
        free |= {"train.steps", "train.warmup_steps", "train.eval_characters"}
    changes = differences(values(config), values(now))
    if changed := [change for key, change in changes.items() if key not in free]:
        raise UsageError(
            f"the run's settings differ from the sweep's: {', '.join(changed)}; delete the run's "
            f"folder to train it again"
        )


def _scored(result: SweepRun, run: Path, corpus: Corpus, device: str) -> SweepRun:
    """Return `result` with the val loss of the best checkpoint of a finished run."""
    best = read_checkpoint(run)
    loss = best.val_loss
    if loss is None:  # only a part of val was evaluated
        with phase(f"evaluating {result.run}"):
            model = load_model(best, select_device(device))
            loss = evaluate(model, scored_val(corpus))
    return replace(result, val_loss=val_units(corpus).per_character(loss))


def summarise(folder: Path, spec: SweepSpec, results: Sequence[SweepRun]) -> Sweep:
    """Group runs that differ only by seed; sort the groups by mean val loss, failed ones last."""
    if len({(trial.text_sha256, trial.config.data.val_fraction) for trial in spec.runs}) > 1:
        log.warning("texts or val splits of the runs differ: compare only losses on the same split")
    groups: dict[str, SweepResult] = {}
    for trial, run in zip(spec.runs, results, strict=True):
        varied = {key: value for key, value in trial.values.items() if key != "seed"}
        groups.setdefault(str(varied), SweepResult(varied, None, None, [])).runs.append(run)
    for key, group in groups.items():
        if mean := seed_mean([run.val_loss for run in group.runs]):
            groups[key] = replace(group, mean=mean.mean, standard_error=mean.standard_error)
    ranked = sorted(groups.values(), key=lambda group: (group.mean is None, group.mean))
    return Sweep(str(from_here(folder)), ranked)
