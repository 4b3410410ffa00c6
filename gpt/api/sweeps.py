"""Sweeps: train and compare runs that differ in some settings."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.api.new_run import NewRun, choose_settings, since_now
from gpt.api.run_text import read_text
from gpt.api.settings import Settings, TextPath, as_changes
from gpt.config.schema import Config
from gpt.errors import UsageError, arguments
from gpt.recipe.sweep_spec import Trial, check_count, check_different, combinations
from gpt.runs.folder import RUNS, find_sweep
from gpt.signals import saving_on_interrupt
from gpt.terminal import phase

if TYPE_CHECKING:
    from gpt.recipe.sweep import Sweep


def sweep(  # noqa: D417  # one line describes several arguments
    config: Config | str | Path | None = None,
    *,
    text: TextPath | Sequence[TextPath] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    seeds: int | None = None,
    init_from: str | Path | None = None,
    run_dir: str | Path | None = None,
    should_stop: Callable[[], bool] | None = None,
    on_event: Callable[[dict[str, Any]], object] | None = None,
) -> "Sweep":
    """Train one run for each combination of the given values, and compare their val losses.

    The runs are trained one after another. If the folder already contains the same sweep, the sweep
    is resumed, and finished runs are not trained again. If a run fails, the others are still
    trained.

    Args:
        config, text, init_from, should_stop, on_event: see `train`. If `config` is None, runs with
            the same text, time and model settings share the choice of the other settings. Each
            event also has `run`, the name of the run.
        minutes: the time of each run.
        settings: a setting may have a list of values to combine, such as
            `{"train.learning_rate": [1e-3, 2e-3]}` or `["train.learning_rate=1e-3,2e-3"]`.
        seeds: the number of runs of each combination. Their seeds are the setting `seed` of the
            config, `seed` + 1 and so on.
        run_dir: the folder of the sweep; default `runs/NAME-sweep`. It is never overwritten.

    Returns:
        A Sweep: the combinations, each with its runs and their best val losses in nats per
        character. The combination with the lowest mean val loss comes first.

    Raises:
        UsageError: the folder contains another sweep, or other files.
        Interrupted, KeyboardInterrupt: as for `train`; the state of the runs is saved.
        ConfigError, DeviceError, TextError: as `train` raises them, before the first run begins.
    """
    if seeds is not None and (not isinstance(seeds, int) or seeds < 1):
        raise UsageError(f"seeds: expected an integer >= 1, got {seeds!r:.100}")

    changes = as_changes(settings)
    new = NewRun(config, text, changes, minutes, init_from)

    def with_values(values: dict[str, str]) -> NewRun:
        return replace(new, settings=[*changes, *(f"{k}={v}" for k, v in values.items())])

    combined = combinations(changes)
    if seeds is not None:
        first = next(iter(combined.values()))
        if "seed" in first:
            option = arguments("seeds")
            raise UsageError(f"expected either {option} or several values of seed, got both")
        check_count(seeds * len(combined))
        seed = with_values(first).resolve(in_sweep=True).seed
        combined = combinations([*changes, ("seed", [*range(seed, seed + seeds)])])
    trials = []
    for name, values in combined.items():
        run = with_values(values)
        asked = run.resolve(in_sweep=True)
        is_open = run.needs_choice(asked)
        trials.append(Trial(name=name, values=values, asked=asked, is_open=is_open))
    check_different(trials)
    with phase("loading PyTorch"):
        from gpt.recipe.sweep import run_sweep

    with saving_on_interrupt(should_stop) as stop:
        return run_sweep(
            Path(run_dir) if run_dir else RUNS / f"{new.name}-sweep",
            trials,
            choose=lambda one: choose_settings(one, since_now(), stop)[0],
            load=read_text,
            should_stop=stop,
            on_event=on_event or (lambda event: None),
        )


def resume_sweep(  # noqa: D417  # one line describes several arguments
    folder: str | Path,
    *,
    should_stop: Callable[[], bool] | None = None,
    on_event: Callable[[dict[str, Any]], object] | None = None,
) -> "Sweep":
    """Train the unfinished runs of a sweep, and compare all its runs as `sweep` does.

    Args:
        folder: the folder of the sweep, or its name under `runs/`.
        should_stop, on_event: see `sweep`.

    Returns:
        The Sweep, as `sweep` returns it.

    Raises:
        UsageError: there is no such sweep.
        Interrupted, KeyboardInterrupt: as for `train`; the state of the runs is saved.
    """
    with phase("loading PyTorch"):
        from gpt.recipe.sweep import run_sweep

    if (found := find_sweep(str(folder))) is None:
        raise UsageError(f"{folder}: expected the folder of a sweep, or its name in runs/")
    with saving_on_interrupt(should_stop) as stop:
        return run_sweep(
            found,
            None,
            load=partial(read_text, folder=found.absolute()),
            should_stop=stop,
            on_event=on_event or (lambda event: None),
        )
