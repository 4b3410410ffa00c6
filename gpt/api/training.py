"""Runs: train one, resume it, and find out beforehand what it takes."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.api.resolve import (
    Settings,
    Text,
    as_changes,
    name_of,
    read_text,
    ready,
    resolve,
    resolve_new,
    since_now,
)
from gpt.distributed import from_main, joined
from gpt.status import phase
from gpt.torchrun import begin_training, check_alone

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.recipe.range_test import RangeTest
    from gpt.runs.checkpoint import CheckpointData
    from gpt.training.dry_run import Estimate
    from gpt.training.trainer import Outcome


def train(
    config: "Config | str | Path | None" = None,
    *,
    text: Text | Sequence[Text] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    init_from: str | Path | None = None,
    run_dir: str | Path | None = None,
    overwrite: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> "Outcome":
    """Train a model on a text in a new run folder.

    Args:
        config: a Config, the path of a YAML file, or the name of a shipped one, such as quickstart.
            Without one, what `settings` leave open is chosen for the text and the `minutes`, by
            default 5; but with `train.steps`, `train.init_from` or `train.distill` it has its
            defaults.
        text: the text, or several, in place of `data.source`: a named one, a file, a folder, a glob
            or `-` for standard input.
        minutes: how long all of it may take, in place of `train.steps`, also where a config has
            `train.plans`.
        settings: changes, as `{"train.steps": 500}` or `["train.steps=500"]`.
        init_from: the run to fine-tune, in place of `train.init_from`: training begins with the
            weights of its best checkpoint, and its shape and recipe are the defaults. Unless
            `train.steps` is set, it ends when further passes over the text would overfit, or when
            three evaluations in a row bring no better val loss.
        run_dir: the run's folder; default `runs/NAME`, after the text if it is given, else after
            the config; with a number if that is taken.
        overwrite: replace the run that is in the folder.
        should_stop: asked after each step and, from any thread, before each window of an
            evaluation; once it returns True, the state is saved and Interrupted raised.
        on_event: called with a dict of what happens; `gpt.training.trainer.train` lists them.
        clock: the seconds that are used of the minutes; by default those since this call.

    Started by torchrun, its processes train one model together, and all have the Outcome; where it
    restarted them, they resume the run that they began.

    Raises:
        ConfigError: the file, a key or a value is wrong.
        UsageError: the run's folder is in use, or there is no run to fine-tune.
        GPTError: the run's folder can be neither made nor written to.
        TextError: the text cannot be read.
        Interrupted: `should_stop` returned True, and the state is saved, if training had begun.
        TrainingError: training cannot continue; the run's checkpoints are as they were.
    """
    clock = clock or since_now()
    settled = resolve_new(config, text, settings, minutes, init_from)

    from gpt.runs.folder import RUNS, check_can_be_made, check_free, check_keeps, has_checkpoint

    run = Path(run_dir) if run_dir else RUNS / name_of(config, text)
    numbered = not (run_dir or overwrite)
    with joined():
        before = from_main(begin_training)
        if "outcome" in before:
            return _outcome(before)
        if begun := before.get("run"):
            if from_main(has_checkpoint, Path(begun)):
                return resume(begun, should_stop=should_stop, on_event=on_event, clock=clock)
            run, numbered, overwrite = Path(begun), False, True
        if numbered:
            from_main(check_can_be_made, run.parent)
        else:
            from_main(partial(check_free, overwrite=overwrite), run)
        if overwrite:
            from_main(check_keeps, run, settled)
        settled, corpus = ready(config, settled, settings, clock, should_stop)

        with phase("loading PyTorch"):
            from gpt.training.trainer import train as train_model

        return train_model(
            settled,
            corpus,
            run,
            overwrite=overwrite,
            numbered=numbered,
            should_stop=should_stop,
            on_event=on_event,
            clock=clock,
        )


def resume(
    run: str | Path | None = None,
    *,
    text: Text | Sequence[Text] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> "Outcome":
    """Resume a run from its last checkpoint, with the run's config but for these settings.

    Args:
        run: the folder of a run, or its name in `runs`; default the newest run of `text`, or the
            newest of all.
        text: selects the newest run of this text; with `run`, where the same text is now.
        minutes: how long to train. A finished run trains for as many minutes more, after a short
            warmup (`train.rewarm_steps`). For an interrupted run it is the time of the whole run,
            over all resumes, in place of what it had.
        settings: changes, as for `train`. `train.steps` takes the place of minutes and plans.
        should_stop: see `train`.
        on_event: see `train`.
        clock: see `train`.

    Returns:
        How the run ended.

    Raises:
        ConfigError: a setting would make it another run.
        UsageError: there is no such run, its text changed, it is finished and neither minutes nor
            steps are added, or the minutes are too few.
        CheckpointError: no checkpoint of the run can be read.
    """
    from gpt.config.load import check_effects, keys_set_by
    from gpt.runs.folder import find_run
    from gpt.runs.listing import find_run_of_text
    from gpt.runs.recovery import summary_to_resume

    clock = clock or since_now()
    with joined():
        before = from_main(begin_training)
        if "outcome" in before:
            return _outcome(before)
        run = before.get("run", run)  # the newest may be another one by now
        names = [str(name) for name in ([text] if isinstance(text, str | Path) else text or [])]
        if run is None and names:
            folder = from_main(find_run_of_text, names)
        else:
            folder = from_main(find_run, None if run is None else str(run))
        newest = from_main(summary_to_resume, folder)
        if "run" in before and not newest.finished:
            minutes = None  # the process that torchrun restarted has saved them
        settled, adds_minutes = _settled_to_resume(newest, text, settings, minutes)
        check_effects(settled, keys_set_by(as_changes(settings)))
        settled, corpus = read_text(settled, newest.vocabulary)

        with phase("loading PyTorch"):
            from gpt.training.trainer import train as train_model

        return train_model(
            settled,
            corpus,
            folder,
            resume=True,
            adds_minutes=adds_minutes,
            should_stop=should_stop,
            on_event=on_event,
            clock=clock,
        )


def _settled_to_resume(
    newest: "CheckpointData",
    text: Text | Sequence[Text] | None,
    settings: Settings,
    minutes: float | None,
) -> tuple["Config", bool]:
    """Return the config to resume with, and whether its minutes are added to a finished run."""
    from gpt.config.load import keys_set_by

    changes = as_changes(settings)
    given = keys_set_by(changes)
    adds_minutes = newest.finished and (minutes is not None or "train.minutes" in given)
    if adds_minutes and "train.max_steps" not in given:
        changes.append("train.max_steps=null")  # it limited the run that is finished
    train = newest.config.train
    if newest.finished and "train.steps" in given and "train.rewarm_steps" not in given:
        changes.append(f"train.rewarm_steps={train.rewarm_steps or train.warmup_steps}")
    return resolve(newest.config, text, changes, minutes, plans_again=False), adds_minutes


def estimate(
    config: "Config | str | Path | None" = None,
    *,
    text: Text | Sequence[Text] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    init_from: str | Path | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple["Config", "Estimate"]:
    """The resolved config, and what training by it would take: parameters, memory, time.

    For the arguments see `train`.

    Raises:
        ConfigError, TextError: see `train`.
        UsageError: torchrun started several processes.
    """
    check_alone("a dry run")
    clock = clock or since_now()
    settled = resolve_new(config, text, settings, minutes, init_from)
    settled, corpus = ready(config, settled, settings, clock, costs=False)
    with phase("loading PyTorch"):
        from gpt.training.dry_run import estimate as measured
    return measured(settled, corpus, clock)


def find_learning_rate(
    config: "Config | str | Path | None" = None,
    *,
    text: Text | Sequence[Text] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    init_from: str | Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "RangeTest":
    """Which learning rates suit a config and a text: a range test, which leaves no run.

    For the arguments see `train`.

    Raises:
        ConfigError, TextError: see `train`.
        TrainingError: the loss does not fall, not even at a hundredth of the config's rates.
        Interrupted: `should_stop` returned True.
    """
    check_alone("a range test")
    clock = since_now()
    settled = resolve_new(config, text, settings, minutes, init_from)
    settled, corpus = ready(config, settled, settings, clock, should_stop)

    with phase("loading PyTorch"):
        from gpt.recipe.range_test import find_learning_rate as test_range

    return test_range(settled, corpus, should_stop)


def _outcome(before: dict[str, Any]) -> "Outcome":
    """That of a training which ended before torchrun restarted its processes."""
    from gpt.training.trainer import Outcome

    return Outcome(**before["outcome"])
