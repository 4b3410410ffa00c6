"""Sweeps: train and compare runs that differ in some settings."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.api.resolve import (
    Settings,
    Text,
    as_changes,
    chosen,
    is_open,
    name_of,
    never,
    read_text,
    resolve_new,
    since_now,
)
from gpt.errors import UsageError
from gpt.status import phase

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.recipe.sweep import Sweep


def sweep(
    config: "Config | str | Path | None" = None,
    *,
    text: Text | Sequence[Text] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    seeds: int | None = None,
    jobs: int | None = None,
    init_from: str | Path | None = None,
    run_dir: str | Path | None = None,
    overwrite: bool = False,
    should_stop: Callable[[], bool] | None = None,
    on_event: Callable[[dict[str, Any]], object] | None = None,
) -> "Sweep":
    """Train a run for each combination of several values, and compare their val losses.

    If the folder already holds the same sweep, it is resumed: finished runs are not trained again.
    A run that fails does not end the others. For the other arguments and exceptions see `train`.

    Args:
        config: see `train`. Open settings are chosen once for all runs, unless the runs differ in
            their text, time or model.
        text: see `train`.
        minutes: the time of each run.
        settings: as for `train`; a key that takes one value may have a list of values, such as
            `{"train.learning_rate": [1e-3, 2e-3]}` or `["train.learning_rate=1e-3,2e-3"]`.
        seeds: the number of seeds to train each combination with; the first is the config's.
        jobs: the number of runs to train at the same time. With `threads: auto`, the first call
            divides the threads of torch among them.
        init_from: see `train`.
        run_dir: the folder of the sweep; default `runs/NAME-sweep`.
        overwrite: replace the sweep in the folder.
        should_stop: see `train`.
        on_event: see `train`; each event also has `run`, the name of its run. With several `jobs`,
            each run is a process of its own, whose events are not reported.

    Returns:
        The combinations, the lowest mean val loss (nats per character) first, each with its runs.

    Raises:
        UsageError: the folder holds another sweep, or something else.
        Interrupted: `should_stop` returned True, and what was trained is saved.
    """
    from gpt.recipe.sweep_plan import PlannedRun, check_count, check_different, combinations
    from gpt.runs.find import RUNS

    if seeds is not None and seeds < 1:
        raise UsageError(f"seeds: expected at least one, got {seeds}")

    def resolved(changes: Settings) -> "Config":
        return resolve_new(config, text, changes, minutes, init_from, in_sweep=True)

    changes = as_changes(settings)
    combined = combinations(changes)
    if seeds is not None:
        if "seed" in combined[0].values:
            raise UsageError("expected either --seeds or several values of seed, got both")
        check_count(seeds * len(combined))
        first = resolved(combined[0].changes).seed
        combined = combinations([*changes, ("seed", [*range(first, first + seeds)])])
    runs = []
    for each in combined:
        asked = resolved(each.changes)
        is_chosen = is_open(config, asked)
        runs.append(PlannedRun(name=each.name, values=each.values, asked=asked, is_open=is_chosen))
    check_different(runs)
    with phase("loading PyTorch"):
        from gpt.recipe.sweep import run_sweep

    return run_sweep(
        Path(run_dir) if run_dir else RUNS / f"{name_of(config, text)}-sweep",
        runs,
        choose=lambda one: chosen(one, since_now(), should_stop or never)[0],
        load=lambda one, folder: read_text(one, folder=folder),
        jobs=jobs,
        overwrite=overwrite,
        should_stop=should_stop or never,
        on_event=on_event or (lambda event: None),
    )


def is_sweep(settings: Settings) -> bool:
    """Return whether these settings are of a sweep: a key that takes one value has several.

    Args:
        settings: see `sweep`.

    Returns:
        True if the settings are of a sweep.

    Raises:
        ConfigError: a setting is not `section.key=value`.
    """
    from gpt.recipe.sweep_plan import combinations

    return bool(combinations(as_changes(settings))[0].values)


def resume_sweep(
    folder: str | Path,
    *,
    jobs: int | None = None,
    should_stop: Callable[[], bool] | None = None,
    on_event: Callable[[dict[str, Any]], object] | None = None,
) -> "Sweep":
    """Train the runs of a sweep that are not finished, and compare all; see `sweep`.

    Args:
        folder: the folder of the sweep, or its name under `runs/`.
        jobs: the number of runs to train at the same time; default: as before.
        should_stop: see `train`.
        on_event: see `sweep`.

    Returns:
        The result of `sweep`.

    Raises:
        UsageError: there is no such sweep.
        Interrupted: `should_stop` returned True, and what was trained is saved.
    """
    with phase("loading PyTorch"):
        from gpt.recipe.sweep import run_sweep
    from gpt.runs.find import find_sweep

    if (found := find_sweep(str(folder))) is None:
        raise UsageError(f"{folder}: expected the folder of a sweep, or its name in runs/")
    return run_sweep(
        found,
        None,
        load=lambda one, within: read_text(one, folder=within),
        jobs=jobs,
        should_stop=should_stop or never,
        on_event=on_event or (lambda event: None),
    )
