"""Show a run in the terminal or a notebook: a progress bar, losses and samples."""

import logging
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

from tqdm.auto import tqdm
from tqdm.utils import disp_trim

from gpt.terminal import visible
from gpt.training.callbacks import Callback

log = logging.getLogger(__name__)

# the losses come first, because a narrow terminal cuts off the end of the line
BAR_FORMAT = "{desc}  {elapsed}<{remaining}  {n_fmt}/{total_fmt}  {percentage:.0f}% |{bar}|"
SAMPLE_LINES = 3  # number of lines of a sample to show on the terminal
LOG_S = 30  # seconds between two lines about the progress, if stderr is no terminal
MAX_SAMPLE_COLUMNS = 100  # largest width of a line of a sample
SHOWN_METRICS = {  # names of metrics on the bar, the most important first
    "val_loss": "val",
    "val_loss_per_character": "val per character",
    "val_loss_part": "part of val",
    "train_loss": "train",
}


class ProgressBar(Callback):
    """Shows the steps, newest losses and characters per second; logs evaluations and samples."""

    def __init__(self, steps: int, done: int) -> None:
        self._bar = make_bar(total=steps, initial=done, desc="training")
        self._latest: dict[str, float] = {}
        self._began = self._logged = time.monotonic()
        self._done, self._losses = done, "no loss yet"

    def on_step(self, step: int) -> None:
        """Advance the bar by one step. Without a bar, log a line every LOG_S seconds."""
        self._bar.update()
        now = time.monotonic()
        if self._bar.disable and now - self._logged >= LOG_S:
            self._logged = now
            total = int(self._bar.total or step)
            left_s = (now - self._began) / (step - self._done) * (total - step)
            message = "step %d of %d: %s, about %s left"
            log.info(message, step, total, self._losses, tqdm.format_interval(left_s))

    def on_plan(self, step: int, steps: int) -> None:
        self._bar.total = steps

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the newest metrics on the bar. If `metrics` has a val loss, also log the losses."""
        self._latest |= metrics
        self._losses = ", ".join(_described(self._latest))
        self._bar.set_description_str(self._losses, refresh=False)
        name = "val_loss" if "val_loss" in metrics else "val_loss_part"
        if name in metrics:
            losses = _described(metrics)
            if members := [metrics[key] for key in metrics if key.startswith(f"{name}_member_")]:
                losses.insert(1, f"members {min(members):.4f} to {max(members):.4f}")
            log.info("step %d: %s", step, ", ".join(losses))

    def on_sample(self, step: int, text: str) -> None:
        """Log the first lines of `text`."""
        width = min(shutil.get_terminal_size().columns, MAX_SAMPLE_COLUMNS)
        lines = visible(text).expandtabs().strip("\n").split("\n")[:SAMPLE_LINES]
        shown = [disp_trim(f"  {line}", width) for line in lines]
        log.info("sample at step %d:" + len(shown) * "\n%s", step, *shown)

    def close(self) -> None:
        self._bar.close()


def _described(metrics: Mapping[str, float]) -> list[str]:
    """Return texts such as `train 1.2345` for those of `metrics` that the bar shows."""
    names = SHOWN_METRICS.items()
    shown = [f"{name} {metrics[key]:.4f}" for key, name in names if key in metrics]
    if pace := metrics.get("chars_per_s"):
        shown.append(f"{tqdm.format_sizeof(pace)} chars/s")
    return shown


def make_bar(**options: Any) -> "tqdm[Any]":
    """Return a tqdm bar: a widget in a notebook, else a line, hidden if stderr is no terminal."""
    kernel = sys.modules.get("ipykernel.kernelapp")  # can be loaded outside notebooks, too
    is_notebook = kernel is not None and kernel.IPKernelApp.initialized()
    disable = False if is_notebook else None if sys.stderr else True  # pythonw has no stderr
    return tqdm(**options, bar_format=BAR_FORMAT, disable=disable, dynamic_ncols=True, miniters=1)
