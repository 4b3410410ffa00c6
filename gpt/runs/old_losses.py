"""Losses of runs of an old version, which averaged the network's predictions with n-gram counts.

Such a run stored the loss of the mixture as its val loss, and chose its best checkpoint by it. The
network's own losses are in metrics.jsonl, as `val_loss_network` or `val_loss_part_network`. They
replace the losses of the mixture when a checkpoint is read, to be comparable with other runs.
"""

import json
import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpt.runs.format import Counters

COUNTS = "counts.safetensors"  # name of a file that each checkpoint of such a run has
NOTICE = (
    "%s was trained with n-gram counts, which this version does not have; its network alone is used"
)


def network_counters(counters: Counters, run: Path, kept: Iterable[int]) -> Counters:
    """Return `counters` of an old run with the losses of its network.

    The best step becomes the one of the `kept` checkpoints whose network has the lowest loss. A
    loss that metrics.jsonl lacks is unknown: the val loss is None, and the best loss infinite.
    """
    records = {step: record for step, record in _records(run).items() if step <= counters.step}
    val_loss, losses = _network_loss(records.get(counters.step, {}), "val_loss"), _losses(records)
    best = _lowest(losses, kept)
    numbers = dict(counters.numbers)
    if isinstance(progress := numbers.get("progress"), dict):
        before = ("loss", "best_loss", "best_step", "val_loss", "since_best")
        progress = {key: value for key, value in progress.items() if key not in before}
        if losses:
            progress["loss"] = losses[max(losses)]
        if best is not None:
            progress |= {"best_loss": losses[best], "best_step": best}
        numbers["progress"] = progress | {"val_loss": val_loss}
    bits = numbers.pop("bits_per_byte", None)
    if isinstance(bits, float) and val_loss is not None and counters.val_loss:
        numbers["bits_per_byte"] = bits * val_loss / counters.val_loss
    return counters.model_copy(update={"val_loss": val_loss, "best_step": best, "numbers": numbers})


def best_step(run: Path, kept: Iterable[int]) -> int | None:
    """Return the step of `kept` whose network has the lowest known loss; None if none is known."""
    return _lowest(_losses(_records(run)), kept)


def recorded_loss(record: dict[str, Any], name: str) -> float:
    """Return the loss `name` of a record; in an old run, that of its network.

    Raises:
        KeyError: the record has no such loss.
    """
    return float(record.get(f"{name}_network") or record[name])


def _lowest(losses: dict[int, float], kept: Iterable[int]) -> int | None:
    """Return the step of `kept` that has the lowest of `losses`; None if none has a loss."""
    return min((step for step in kept if step in losses), key=losses.__getitem__, default=None)


def _losses(records: dict[int, dict[str, Any]]) -> dict[int, float]:
    """Return the network's losses by step, on a part of val if evaluations scored a part."""
    losses = dict[int, float]()
    for step, record in records.items():
        for name in ("val_loss_part", "val_loss"):
            loss = _network_loss(record, name)
            if step and loss is not None:
                losses.setdefault(step, loss)
    return losses


def _network_loss(record: dict[str, Any], name: str) -> float | None:
    """Return the network's loss `name` of a record; None if it is missing or damaged."""
    loss = record.get(f"{name}_network")
    return loss if isinstance(loss, float) and math.isfinite(loss) else None


def _records(run: Path) -> dict[int, dict[str, Any]]:
    """Return the records of metrics.jsonl by step; skip damaged lines."""
    records, path = dict[int, dict[str, Any]](), run / "metrics.jsonl"
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError, OverflowError):
                record = json.loads(line)
                records[int(record["step"])] = record
    return records
