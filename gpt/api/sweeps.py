"""Sweeps: runs that differ in some settings, to be compared."""

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
    read_text,
    resolve_new,
    since_now,
    with_one_input,
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
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] | None = None,
) -> "Sweep":
    """Train a run for each combination of several values, and compare their val losses.

    If the folder holds that very sweep already, it is resumed, and what is finished is not trained
    again. A run that fails does not end the others.

    Args:
        settings: as for `train`, but a key that takes one value may have a list of them, as
            `{"train.learning_rate": [1e-3, 2e-3]}` or `["train.learning_rate=1e-3,2e-3"]`.
        seeds: train each combination with so many seeds, from the config's on.
        jobs: how many runs are trained at once, as processes; the first time it decides how many
            threads each has: with `threads: auto` as many as torch takes here, divided by it.
        run_dir: the folder of the sweep; default `runs/NAME-sweep`.
        config, text, minutes, init_from, overwrite, should_stop: see `train`. Each run has so many
            minutes; what is left open is chosen once, unless runs differ in their text, their time
            or their model.
        on_event: see `train`; each event has also `run`, the name of its run.

    Raises:
        ConfigError, DeviceError, TextError: see `train`; nothing was trained.
        UsageError: the folder holds another sweep, or something else.
        Interrupted: `should_stop` returned True, and what was trained is saved.
    """
    from gpt.recipe.grid import asked_settings, check_different, combinations, names_of, with_seeds
    from gpt.runs.folder import RUNS

    if jobs is not None and jobs < 1:
        raise UsageError(f"expected at least one job, got {jobs}")
    if seeds is not None and seeds < 1:
        raise UsageError(f"expected at least one seed, got {seeds}")

    def resolved(changes: Settings) -> "Config":
        return resolve_new(config, text, changes, minutes, init_from, in_sweep=True)

    combined = combinations(as_changes(settings))
    combined = with_seeds(combined, resolved(combined[0].changes).seed, seeds)
    configs = [resolved(each.changes) for each in combined]
    names = names_of(combined)
    opens = [is_open(config, one) for one in configs]
    settings_of = [
        asked_settings(one, is_open=left) for one, left in zip(configs, opens, strict=True)
    ]
    check_different(dict(zip(names, settings_of, strict=True)))
    configs = with_one_input(configs)

    with phase("loading PyTorch"):
        from gpt.recipe.sweep import run_sweep
        from gpt.recipe.sweep_plan import Asked

    asked = [
        Asked(name, each.values, one, left)
        for name, each, one, left in zip(names, combined, configs, opens, strict=True)
    ]
    return run_sweep(
        Path(run_dir) if run_dir else RUNS / f"{name_of(config, text)}-sweep",
        asked,
        choose=lambda one: chosen(one, since_now(), should_stop)[0],
        load=lambda one, vocabulary: read_text(one, vocabulary)[1],
        jobs=jobs,
        overwrite=overwrite,
        should_stop=should_stop,
        on_event=on_event or (lambda event: None),
    )


def is_sweep(settings: Settings) -> bool:
    """Whether a key that takes one value has several. Raises ConfigError, see `sweep`."""
    from gpt.recipe.grid import combinations

    return bool(combinations(as_changes(settings))[0].values)


def resume_sweep(
    folder: str | Path,
    *,
    jobs: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] | None = None,
) -> "Sweep":
    """Train the runs of a sweep that are not finished, and compare all; see `sweep`.

    Raises:
        UsageError: there is no such sweep, or its text has changed.
    """
    with phase("loading PyTorch"):
        from gpt.recipe.sweep import run_sweep
    from gpt.runs.folder import find_sweep

    if (found := find_sweep(str(folder))) is None:
        raise UsageError(f"{folder}: expected the folder of a sweep, or its name in runs/")
    return run_sweep(
        found,
        None,
        load=lambda one, vocabulary: read_text(one, vocabulary)[1],
        jobs=jobs,
        should_stop=should_stop,
        on_event=on_event or (lambda event: None),
    )
