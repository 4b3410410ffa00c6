"""Train a run, resume it, or estimate its cost."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.api.resolve import (
    Settings,
    Text,
    as_changes,
    name_of,
    never,
    read_text,
    ready,
    resolve,
    resolve_new,
    since_now,
)
from gpt.distributed.launch import begin_training, check_alone
from gpt.distributed.ranks import Ranks, joined
from gpt.errors import UsageError, shown
from gpt.status import phase

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.runs.format import CheckpointData
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
    should_stop: Callable[[], bool] | None = None,
    on_event: Callable[[dict[str, Any]], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> "Outcome":
    """Train a model on a text in a new run folder.

    When torchrun starts this program, its processes train one model together, and all return the
    Outcome. When torchrun restarts them, they resume the run that they began.

    Args:
        config: a Config, the path of a YAML file, or the name of a shipped one, such as quickstart.
            Without a config, what `settings` leave open is chosen for the text and the `minutes`
            (default 5); but `train.steps`, `train.init_from` and `train.distill` among the settings
            leave the defaults as they are.
        text: the text, or several, in place of `data.source`: a named one, a file, a folder, a glob
            or `-` for standard input.
        minutes: the time of the whole call, in minutes, in place of `train.steps`, also if the
            config has `train.plans`.
        settings: changes of the config, `{"train.steps": 500}` or `["train.steps=500"]`.
        init_from: the run to fine-tune, in place of `train.init_from`. Training begins with the
            weights of its best checkpoint, and its shape and recipe are the defaults. Unless
            `train.steps` is set, it ends when further passes over the text would overfit, or when
            three evaluations in a row bring no better val loss.
        run_dir: the folder of the run; default `runs/NAME`, where NAME is that of the text, or
            without a text that of the config; a number is added if the folder exists.
        overwrite: whether to replace the run in the folder. It is deleted with the first checkpoint
            of the new run, and put back if training fails before.
        should_stop: called after each step and, from any thread, before each window of an
            evaluation. If it returns True, the state is saved and Interrupted is raised.
        on_event: called in this thread with a dict with `kind`, `step`, and for each kind:
            "step", every `train.log_every` steps: `train_loss` (nats per id), `lr`, `grad_norm` and
                `chars_per_s`;
            "evaluation": `val_loss`, or with `train.eval_characters` `val_loss_part`, in nats per
                id; `is_best`; with bytes `val_loss_per_character`; of an ensemble
                `val_loss_member_1` and so on;
            "sample", after an evaluation: `text`;
            "checkpoint": `path`, `is_best`;
            "plan", with `minutes`: `steps`, the number of steps of the whole run from now on;
            "notice": `text`, about a skipped step, a rollback or overfitting.
        clock: returns the seconds of the `minutes` that have passed; default: those since this
            call.

    Returns:
        An Outcome: the folder in `run`, the last `step`, `val_loss`, `best_val_loss` and
        `best_step`, `bits_per_byte`, `seconds`, and the `reason` for which training ended. Losses
        are in nats per id: a character, or with `data.vocabulary: bytes` a byte.

    Raises:
        ConfigError: the file, a key or a value is wrong.
        DeviceError: this machine does not have the device, or cannot compile the model.
        TextError: the text cannot be read.
        UsageError: the folder is in use, or there is no run to fine-tune.
        GPTError: the folder can be neither made nor written to.
        OutOfMemory: training would take more memory than is free.
        TrainingError: training cannot continue; the checkpoints are as they were.
        Interrupted: `should_stop` returned True. If training had begun, the state is saved.
    """
    should_stop = should_stop or never
    clock = clock or since_now()
    settled = resolve_new(config, text, settings, minutes, init_from)
    if not isinstance(run_dir, str | Path | None):
        raise UsageError(f"run_dir: expected a str or Path, got {shown(repr(run_dir))}")

    from gpt.runs.find import RUNS
    from gpt.runs.folder import check_can_be_made, check_free, check_keeps
    from gpt.runs.format import has_checkpoint

    typed = Path(run_dir) if run_dir else RUNS / name_of(config, text)
    numbered = not (run_dir or overwrite)
    with joined(should_stop) as ranks:
        before = ranks.broadcast(begin_training)
        if "outcome" in before:
            return _outcome(before)
        if begun := before.get("run"):
            if ranks.broadcast(has_checkpoint, Path(begun)):
                return _resume(ranks, before, begun, None, None, (), should_stop, on_event, clock)
            typed, numbered, overwrite = Path(begun), False, True
        run = typed.absolute()  # the caller may change the working folder
        if numbered:
            ranks.broadcast(check_can_be_made, typed.parent)
        else:
            ranks.broadcast(partial(check_free, overwrite=overwrite), typed)
        if overwrite:
            ranks.broadcast(check_keeps, typed, settled)
        settled, corpus = ready(config, settled, settings, clock, should_stop, ranks=ranks)

        with phase("loading PyTorch"):
            from gpt.training.trainer import train as train_model

        return train_model(
            settled,
            corpus,
            run,
            typed=typed,
            overwrite=overwrite,
            numbered=numbered,
            should_stop=should_stop,
            on_event=on_event,
            clock=clock,
            ranks=ranks,
        )


def resume(
    run: str | Path | None = None,
    *,
    text: Text | Sequence[Text] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    should_stop: Callable[[], bool] | None = None,
    on_event: Callable[[dict[str, Any]], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> "Outcome":
    """Resume a run from its last checkpoint, with its config but for `settings`.

    Args:
        run: the folder of the run, or its name under `runs/`; default: the newest run of `text`, or
            the newest of all.
        text: selects the newest run of this text; with `run`, where the same text is now.
        minutes: the time to train, in minutes. A finished run trains for as many minutes more,
            after a short warmup (`train.rewarm_steps`). For an interrupted run it is the time of
            the whole run, over all resumes.
        settings: changes of the run's config; `train.steps` replaces its minutes and plans.
        should_stop, on_event, clock: see `train`.

    Returns:
        The Outcome of the whole run; see `train`.

    Raises:
        ConfigError: a setting would make it another run.
        UsageError: there is no such run, its text has changed, it is finished and neither minutes
            nor steps are added, or the minutes are too few.
        CheckpointError: no checkpoint of the run can be read.
        TextError, DeviceError, OutOfMemory, TrainingError, Interrupted: see `train`.
    """
    should_stop = should_stop or never
    clock = clock or since_now()
    with joined(should_stop) as ranks:
        before = ranks.broadcast(begin_training)
        if "outcome" in before:
            return _outcome(before)
        return _resume(ranks, before, run, text, minutes, settings, should_stop, on_event, clock)


def _resume(
    ranks: Ranks,
    before: dict[str, Any],
    run: str | Path | None,
    text: Text | Sequence[Text] | None,
    minutes: float | None,
    settings: Settings,
    should_stop: Callable[[], bool],
    on_event: Callable[[dict[str, Any]], object] | None,
    clock: Callable[[], float],
) -> "Outcome":
    """Resume a run on all ranks; `before` is what `begin_training` returned."""
    from gpt.config.load import check_effects, keys_set_by
    from gpt.runs.find import find_run, find_run_of_text
    from gpt.runs.recovery import summary_to_resume

    run = before.get("run", run)  # the newest run may have changed
    names = [str(name) for name in ([text] if isinstance(text, str | Path) else text or [])]
    if run is None and names:
        typed = ranks.broadcast(find_run_of_text, names)
    else:
        typed = ranks.broadcast(find_run, None if run is None else str(run))
    folder = typed.absolute()  # the caller may change the working folder
    newest = ranks.broadcast(summary_to_resume, folder)
    if "run" in before and not newest.finished:
        minutes = None  # they were saved before torchrun restarted this process
    settled, adds_minutes = _settled_to_resume(newest, text, settings, minutes)
    check_effects(settled, keys_set_by(as_changes(settings)))
    corpus = read_text(settled, newest.vocabulary, None if names else folder, ranks)

    with phase("loading PyTorch"):
        from gpt.training.trainer import train as train_model

    return train_model(
        settled,
        corpus,
        folder,
        typed=typed,
        resume=True,
        adds_minutes=adds_minutes,
        should_stop=should_stop,
        on_event=on_event,
        clock=clock,
        ranks=ranks,
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
        changes.append("train.max_steps=null")  # it applied to the finished run
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
    """Estimate what training would take, without training a run.

    Args:
        config, text, minutes, settings, init_from, clock: see `train`.

    Returns:
        The resolved config, and an Estimate: `parameters` by part, bytes of memory, and seconds.

    Raises:
        ConfigError, TextError, DeviceError, OutOfMemory: see `train`.
        UsageError: torchrun started several processes.
    """
    check_alone("a dry run")
    clock = clock or since_now()
    settled = resolve_new(config, text, settings, minutes, init_from)
    settled, corpus = ready(config, settled, settings, clock, never, costs=False)
    with phase("loading PyTorch"):
        from gpt.training.dry_run import estimate as measured
    return measured(settled, corpus, clock)


def _outcome(before: dict[str, Any]) -> "Outcome":
    """Return the Outcome of a training that ended before torchrun restarted its processes."""
    from gpt.training.trainer import Outcome

    return Outcome(**before["outcome"])
