"""Runs: train one, resume it, and find out beforehand what it takes."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.api.resolve import (
    Settings,
    Text,
    name_of,
    read_text,
    ready,
    resolve,
    resolve_new,
    since_now,
)
from gpt.distributed import from_main, joined
from gpt.torchrun import begin_training, check_alone

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.recipe.range_test import RangeTest
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
            weights of its best checkpoint, and its shape and recipe are the defaults.
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
    with joined(should_stop):
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
        settled, corpus = ready(config, settled, clock, should_stop)

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
    """Resume a run from its last checkpoint, with the run's config but for those settings.

    `minutes` are those of the whole run, over all resumes, in place of what it had; `train.steps`
    among the settings takes the place of its minutes and plans.
    `should_stop`, `on_event` and `clock` are those of `train`.

    Raises:
        ConfigError: a setting would make it another run.
        UsageError: there is no such run, its text changed, or it has no steps left.
        CheckpointError: no checkpoint of the run can be read.
    """
    from gpt.runs.folder import find_run
    from gpt.runs.recovery import summary_to_resume

    clock = clock or since_now()
    with joined(should_stop):
        before = from_main(begin_training)
        if "outcome" in before:
            return _outcome(before)
        run = before.get("run", run)  # the newest may be another one by now
        folder = from_main(find_run, None if run is None else str(run))
        newest = from_main(summary_to_resume, folder)
        settled = resolve(newest.config, text, settings, minutes, plans_again=False)
        settled, corpus = read_text(settled, newest.vocabulary)

        from gpt.training.trainer import train as train_model

        return train_model(
            settled,
            corpus,
            folder,
            resume=True,
            should_stop=should_stop,
            on_event=on_event,
            clock=clock,
        )


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
    settled, corpus = ready(config, settled, clock)

    from gpt.training.dry_run import estimate as probe
    from gpt.training.time_budget import first_plan

    settled = first_plan(settled, corpus, clock)
    return settled, probe(settled, corpus)


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
    settled, corpus = ready(config, settled, clock, should_stop)

    from gpt.recipe.range_test import find_learning_rate as test_range

    return test_range(settled, corpus, should_stop)


def _outcome(before: dict[str, Any]) -> "Outcome":
    """That of a training which ended before torchrun restarted its processes."""
    from gpt.training.trainer import Outcome

    return Outcome(**before["outcome"])
