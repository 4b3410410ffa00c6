"""The input of all exports: a run and its checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpt.runs.format import CheckpointData
from gpt.text.vocabulary import Ids


@dataclass(frozen=True)
class ExportedRun:
    """A run to export.

    Attributes:
        folder: the folder of the run.
        checkpoint: the checkpoint to export, with its weights.
        val: reads the ids of the val split; returns None if the text is not available.
    """

    folder: Path
    checkpoint: CheckpointData
    val: Callable[[], Ids | None]
