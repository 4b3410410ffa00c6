"""Train a run, resume it, or estimate what it costs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.api.new_run import NewRun, since_now
from gpt.api.settings import Settings, TextPath, as_changes, changed_config
from gpt.config.load import check_effects, keys_set_by
from gpt.config.schema import Config
from gpt.distributed import Ranks, begin_training, check_alone, joined
from gpt.errors import UsageError, shown
from gpt.files import from_here
from gpt.runs.folder import RUNS, check_can_be_made, check_free, check_keeps, find_run
from gpt.runs.format import has_checkpoint
from gpt.signals import saving_on_interrupt
from gpt.terminal import phase

if TYPE_CHECKING:
    from gpt.recipe.dry_run import Estimate
    from gpt.text.corpus import Corpus
    from gpt.training.callbacks import OnEvent
    from gpt.training.run_context import Outcome
    from gpt.training.start import Mode
    from gpt.training.stopwatch import Seconds


def train(
    config: Config | str | Path | None = None,
    *,
    text: TextPath | Sequence[TextPath] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    init_from: str | Path | None = None,
    run_dir: str | Path | None = None,
    overwrite: bool = False,
    should_stop: Callable[[], bool] | None = None,
    on_event: "OnEvent | None" = None,
    clock: Callable[[], float] | None = None,
) -> "Outcome":
    """Train a model on a text in a new run folder.

    If torchrun starts the program in several processes, they train one model together, and each
    returns the Outcome. If torchrun restarts them, they resume the run that they began.

    In the main thread, Ctrl-C or a notebook's stop button ends training after the current step,
    saves the state, and raises KeyboardInterrupt with a message that says how to resume. A second
    Ctrl-C stops at once. Unlike the command line, this function does not handle SIGTERM and SIGHUP.
    In another thread, such as that of `asyncio.to_thread`, Ctrl-C does not end training, so pass
    `should_stop` to end it.

    `on_event` is called in the calling thread. Its argument is a dict with `kind`, `step` and more
    keys, which depend on `kind`:

    - "step", every 10 steps and before an evaluation: `train_loss` (nats per id), `lr`,
      `grad_norm`, `chars_per_s`, `passes` (over the train split)
    - "evaluation": `is_best`, and losses in nats per id. `val_loss` is the loss of the model.
      Ensembles add `val_loss_member_1` and so on. If `train.eval_characters` limits evaluations to
      a part of val, these names begin with `val_loss_part`; the last evaluation also has the losses
      of the whole val. With bytes as ids, `val_loss` comes with `val_loss_per_character` (nats per
      character)
    - "sample", "notice": `text`
    - "checkpoint": `path`, `is_best`
    - "plan", if minutes or `train.plans` are set: `steps`, the new number of steps of the whole run

    Args:
        config: a Config, a YAML file's path, or the name of a shipped config, such as `quickstart`.
            By default, settings are chosen for the text and for `minutes` (default 5). If
            `settings` contain `train.steps`, `train.plans` or `train.init_from`, nothing is chosen,
            and the default settings are used.
        text: one or more, each a file, a folder, a glob, `-` for standard input, `python-docs`,
            `python-source` or `tinyshakespeare`. It replaces `data.source` (default python-docs).
        minutes: the time of the whole call in minutes. It replaces `train.steps` and
            `train.plans` of the config.
        settings: changes of the config, as `{"train.steps": 500}` or `["train.steps=500"]`.
        init_from: the run to fine-tune. Training starts with the weights of its best checkpoint,
            and the settings of its model and optimizer become defaults. Unless `train.steps` is
            set, training stops early to prevent overfitting.
        run_dir: the folder of the run; by default a new one, `runs/NAME`, named after the text or
            the config.
        overwrite: whether to replace a run in the folder. The old run is deleted when the new run
            has its first checkpoint, and is restored if training fails before that.
        should_stop: called after each step (with several ranks on GPUs, at least every ten steps)
            and during an evaluation, possibly from another thread. If it returns True, training
            stops and its state is saved.
        on_event: called for each event, see above.
        clock: returns the seconds since the time of `minutes` began; by default, since this call.

    Returns:
        An Outcome with the folder `run`, the last `step`, `val_loss` and `best_val_loss` in nats
        per id, the `reason` why training ended, and more. An id is a character, or with
        `data.vocabulary: bytes` a byte.

    Raises:
        ConfigError: the file, a key or a value is wrong.
        DeviceError: this machine does not have the device, or cannot compile the model.
        TextError: the text cannot be read.
        UsageError: the folder is in use, or there is no run to fine-tune.
        GPTError: the folder cannot be made or written to.
        OutOfMemory: training would take more memory than is free.
        TrainingError: training cannot continue; the checkpoints are unchanged.
        Interrupted: `should_stop` returned True. If training had begun, the state is saved.
        KeyboardInterrupt: Ctrl-C was pressed. If training had begun, the state is saved.
    """
    clock = clock or since_now()
    new = NewRun(config, text, settings, minutes, init_from)
    resolved = new.resolve()
    if not isinstance(run_dir, str | Path | None):
        raise UsageError(f"run_dir: expected a str or Path, got {shown(repr(run_dir))}")
    run = (Path(run_dir) if run_dir else RUNS / new.name).absolute()
    mode: Mode = "overwrite" if overwrite else "new" if run_dir else "numbered"
    with saving_on_interrupt(should_stop) as should_stop, joined() as ranks:
        begun, probed = ranks.broadcast(begin_training), None
        if begun and ranks.broadcast(has_checkpoint, Path(begun)):
            chosen, corpus, run, mode = _resumed(ranks, begun)
        else:
            if begun:
                run, mode = Path(begun), "overwrite"
            ranks.broadcast(_check_folder, from_here(run), mode, resolved)
            chosen, corpus, probed = new.prepare(resolved, clock, should_stop, ranks)
        return _train(ranks, chosen, corpus, run, mode, should_stop, on_event, clock, probed)


def _check_folder(run: Path, mode: "Mode", config: Config) -> None:
    """Raise UsageError or GPTError if a new run cannot be written to the folder `run`."""
    if mode == "numbered":
        check_can_be_made(run.parent)
        return
    check_free(run, overwrite=mode == "overwrite")
    if mode == "overwrite":
        check_keeps(run, config)


def resume(  # noqa: D417  # one line describes several arguments
    run: str | Path | None = None,
    *,
    text: TextPath | Sequence[TextPath] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    should_stop: Callable[[], bool] | None = None,
    on_event: "OnEvent | None" = None,
    clock: Callable[[], float] | None = None,
) -> "Outcome":
    """Resume a run from its last checkpoint, with its config as changed by `settings`.

    Args:
        run: the folder of the run, or its name under `runs/`; by default, the newest run.
        text: the new location of the run's text, if it was moved.
        minutes: the training time. A finished run is trained for that many more minutes, after a
            short warmup. For an interrupted run, `minutes` is the total time over all resumes.
        settings: changes of the run's config. `train.steps` replaces `train.minutes`. It is
            also added to `train.plans`: a new run with the saved config then repeats this run.
        should_stop, on_event, clock: see `train`.

    Returns:
        The Outcome of the whole run, with the same fields as that of `train`.

    Raises:
        ConfigError: a setting is wrong, or cannot be changed by a resume.
        UsageError: there is no such run; its text has changed; it is finished, and no minutes or
            steps are added; or `minutes` are too few for one step.
        CheckpointError: no checkpoint of the run can be read.
        Unreadable: the checkpoint cannot be read now, or another version of gpt wrote it.
        TextError, DeviceError, OutOfMemory, TrainingError: see `train`.
        Interrupted, KeyboardInterrupt: see `train`.
    """
    clock = clock or since_now()
    with saving_on_interrupt(should_stop) as should_stop, joined() as ranks:
        begun = ranks.broadcast(begin_training)
        resumed = _resumed(ranks, begun, run, text, minutes, settings)
        return _train(ranks, *resumed, should_stop, on_event, clock)


def _resumed(
    ranks: Ranks,
    begun: str | None,
    run: str | Path | None = None,
    text: TextPath | Sequence[TextPath] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
) -> tuple[Config, "Corpus", Path, "Mode"]:
    """Return the config, text, folder and mode of a run that all ranks resume; see `resume`.

    If torchrun restarted the processes, `begun` is the run that they trained before, else None.
    """
    from gpt.api.run_text import read_text
    from gpt.runs.recovery import summary_to_resume

    run = begun or run  # after a restart, continue the same run, which may not be the newest
    folder = ranks.broadcast(find_run, None if run is None else str(run)).absolute()
    newest = ranks.broadcast(summary_to_resume, folder)
    if begun and not newest.finished:
        minutes = None  # the saved config of the run contains the minutes
    changes = as_changes(settings)
    given = keys_set_by(changes)
    extends = newest.finished and (minutes is not None or "train.minutes" in given)
    if extends and "train.max_steps" not in given:
        changes.append("train.max_steps=null")  # the old limit does not apply to the added time
    settled = changed_config(newest.config, text, changes, minutes)
    check_effects(settled, given)
    corpus = read_text(settled, newest.vocabulary, None if text else folder, ranks)
    return settled, corpus, folder, "extend" if extends else "resume"


def _train(
    ranks: Ranks,
    config: Config,
    corpus: "Corpus",
    run: Path,
    mode: "Mode",
    should_stop: Callable[[], bool],
    on_event: "OnEvent | None",
    clock: Callable[[], float],
    probed: "Seconds | None" = None,
) -> "Outcome":
    with phase("loading PyTorch"):
        from gpt.training.start import train_run

    return train_run(
        config,
        corpus,
        run,
        mode,
        clock=clock,
        probed=probed,
        should_stop=should_stop,
        on_event=on_event,
        ranks=ranks,
    )


def estimate(  # noqa: D417  # one line describes several arguments
    config: Config | str | Path | None = None,
    *,
    text: TextPath | Sequence[TextPath] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    init_from: str | Path | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple[Config, "Estimate"]:
    """Estimate the parameters, memory and time of a training run, without training it.

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
    new = NewRun(config, text, settings, minutes, init_from)
    chosen, corpus, probed = new.prepare(new.resolve(), clock)
    with phase("loading PyTorch"):
        from gpt.recipe.dry_run import estimate_run
    return estimate_run(chosen, corpus, clock, probed)
