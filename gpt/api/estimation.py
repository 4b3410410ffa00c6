"""Estimate the cost of a training run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.api.new_run import NewRun
from gpt.api.resolve import Settings, TextPath, since_now
from gpt.distributed.ranks import check_alone
from gpt.status import phase

if TYPE_CHECKING:
    from gpt.config.schema import Config
    from gpt.recipe.dry_run import Estimate


def estimate(
    config: "Config | str | Path | None" = None,
    *,
    text: TextPath | Sequence[TextPath] | None = None,
    minutes: float | None = None,
    settings: Settings = (),
    init_from: str | Path | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple["Config", "Estimate"]:
    """Estimate the parameters, memory and time of a training run, without training it.

    Args:
        config: as for `train`.
        text: as for `train`.
        minutes: as for `train`.
        settings: as for `train`.
        init_from: as for `train`.
        clock: as for `train`.

    Returns:
        The resolved config, and an Estimate: `parameters` by part, bytes of memory, and seconds.

    Raises:
        ConfigError, TextError, DeviceError, OutOfMemory: see `train`.
        UsageError: torchrun started several processes.
    """
    check_alone("a dry run")
    clock = clock or since_now()
    new = NewRun(config, text, settings, minutes, init_from)
    prepared = new.prepare(new.resolve(), clock)
    with phase("loading PyTorch"):
        from gpt.recipe.dry_run import estimate_run
    return estimate_run(prepared.config, prepared.corpus, clock, prepared.probed)
