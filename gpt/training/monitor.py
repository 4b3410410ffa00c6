"""What people watch: the bar, metrics.jsonl, TensorBoard."""

import json
import logging
import math
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from gpt import STARTED
from gpt.config import Config, fields
from gpt.files import write_atomically
from gpt.inspection.attention import tile
from gpt.text.display import symbol, visible

log = logging.getLogger(__name__)

TENSORBOARD = {
    "train_loss": "loss/train",
    "val_loss": "loss/val",
    "lr": "learning_rate",
    "grad_norm": "gradient_norm",
    "chars_per_s": "characters_per_second",
}

PROJECTOR = """\
embeddings {
  tensor_name: "characters"
  tensor_path: "projector/vectors.tsv"
  metadata_path: "projector/characters.tsv"
}
"""


class Monitor:
    """Records a run's metrics under its folder and shows them as they come.

    Given the step of a checkpoint that a run is resumed at, it drops the records after it, so
    that the curves go on without a repeat.
    """

    def __init__(self, run: Path, config: Config, resumed_at: int | None) -> None:
        self._run, self._config = run, config
        self._shown: dict[str, float] = {}
        path = run / "metrics.jsonl"
        if resumed_at is not None and path.exists():
            _keep_records_until(path, resumed_at)
        self._metrics = path.open("a", encoding="utf-8")
        self._board = SummaryWriter(
            str(run), purge_step=None if resumed_at is None else resumed_at + 1
        )
        self._bar = tqdm(
            total=config.train.steps,
            initial=resumed_at or 0,
            unit="step",
            disable=None,  # quiet when stderr is no terminal
            dynamic_ncols=True,
        )

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
        self._board.close()
        self._metrics.close()

    def advance(self) -> None:
        """One more step on the bar."""
        self._bar.update()

    def record(self, step: int, metrics: dict[str, float]) -> None:
        """One line of metrics.jsonl, its scalars in TensorBoard, the newest values on the bar."""
        elapsed = round(time.perf_counter() - STARTED, 3)
        line = {"step": step, "elapsed_s": elapsed, **metrics}
        self._metrics.write(json.dumps(line) + "\n")
        self._metrics.flush()
        for name, value in metrics.items():
            self._board.add_scalar(TENSORBOARD[name], value, step)
            if name.endswith("loss"):
                bits = f"bits_per_character/{name.removesuffix('_loss')}"
                self._board.add_scalar(bits, value / math.log(2), step)
        self._shown |= metrics
        shown = [
            f"{name} {self._shown[key]:{form}}"
            for name, key, form in [
                ("train", "train_loss", ".4f"),
                ("val", "val_loss", ".4f"),
                ("chars/s", "chars_per_s", ",.0f"),
            ]
            if key in self._shown
        ]
        self._bar.set_postfix_str(", ".join(shown), refresh=False)
        if "val_loss" in metrics:
            log.info("step %d: %s", step, ", ".join(shown))
            self._board.flush()

    def sync(self) -> None:
        """See the records onto the disk."""
        os.fsync(self._metrics.fileno())

    def sample(self, step: int, text: str) -> None:
        """A sample, shown in TensorBoard as it stands (an indented block is no markup)."""
        block = "\n".join(f"    {line}" for line in visible(text).split("\n"))
        self._board.add_text("sample", block, step)

    def attention(self, step: int, weights: Tensor) -> None:
        """The attention weights (n_layer, H, T, T) as one picture: layers down, heads across."""
        self._board.add_image("attention", tile(weights), step, dataformats="HW")

    def histograms(self, step: int, model: nn.Module) -> None:
        """The weights, and the gradients that the last step used (clipped; at step 0 none)."""
        for name, parameter in model.named_parameters():
            self._board.add_histogram(f"weights/{name}", parameter, step)
            gradient = parameter.grad
            if gradient is not None and gradient.isfinite().all():  # float16's may overflow
                self._board.add_histogram(f"gradients/{name}", gradient, step)

    def embedding(self, vectors: Tensor, characters: str) -> None:
        """The vectors (V, C) of the V characters, for TensorBoard's projector.

        Written here, since `add_embedding` makes a new folder at each step it is called for.
        """
        folder = self._run / "projector"
        folder.mkdir(exist_ok=True)
        np.savetxt(folder / "vectors.tsv", vectors.numpy(force=True), "%.6g", delimiter="\t")
        labels = "".join(f"{symbol(c)}\n" for c in characters)
        (folder / "characters.tsv").write_text(labels, "utf-8")
        (self._run / "projector_config.pbtxt").write_text(PROJECTOR, "utf-8")

    def finish(self, results: dict[str, float]) -> None:
        """The run's settings with its final metrics, for TensorBoard's HPARAMS page."""
        settings: dict[str, Any] = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, _, value in fields(self._config)
        }
        scored = {f"final/{name}": value for name, value in results.items()}
        self._board.add_hparams(settings, scored, run_name=".")


def _keep_records_until(path: Path, step: int) -> None:
    """Drop the records after `step`, and a last line that was cut off."""
    kept = []
    for line in path.read_text("utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, TypeError, KeyError):
            log.warning("%s: left out a damaged line: %.60r", path, line)
    write_atomically(path, "".join(f"{line}\n" for line in kept).encode())
