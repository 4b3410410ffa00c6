"""Remove old checkpoints: only the newest, the best and the previous best are kept."""

import re
import shutil
from pathlib import Path

from gpt.runs.format import STEP_NAME, steps_in

KEPT_CHECKPOINTS = 2  # number of newest checkpoints to keep


def prune(folder: Path, best: set[int | None]) -> None:
    """Remove temporary folders in `folder`, and checkpoints that are neither new nor in `best`.

    The newest KEPT_CHECKPOINTS checkpoints are kept, and those of the steps in `best`.
    """
    kept = {*steps_in(folder)[-KEPT_CHECKPOINTS:], *best}
    for entry in folder.iterdir():
        ours = re.fullmatch(rf"{STEP_NAME}|\.{STEP_NAME}\.(tmp|replaced)", entry.name)
        if ours and not (ours[1] and int(ours[1]) in kept):
            shutil.rmtree(entry, ignore_errors=True)
