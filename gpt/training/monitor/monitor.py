"""What people watch: the bar, metrics.jsonl, TensorBoard."""

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from gpt import STARTED
from gpt.config.schema import Config, fields
from gpt.files import write_atomically
from gpt.inspection.tile import tile
from gpt.text.display import symbol, visible

log = logging.getLogger(__name__)

TENSORBOARD = {
    "train_loss": "loss/train",
    "val_loss": "loss/val",
    "lr": "learning_rate",
    "grad_norm": "gradient_norm",
    "chars_per_s": "characters_per_second",
}

LONGEST_LINE = 2**16  # bytes of metrics.jsonl that are read as one

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
    that the curves go on without a repeat. What cannot be written, on a full disk say, is told
    once: it ends no run. Records are kept and written once there is room.
    """

    def __init__(self, run: Path, config: Config, resumed_at: int | None) -> None:
        self._run, self._config = run, config
        self._shown: dict[str, float] = {}
        path = run / "metrics.jsonl"
        if resumed_at is not None and path.exists():
            _keep_records_until(path, resumed_at)
        self._metrics = path.open("ab", buffering=0)
        self._size = path.stat().st_size  # of what is written whole
        self._unwritten = b""
        self._board: SummaryWriter | None = None
        with self._may_fail("TensorBoard's files"):
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
        threading.excepthook = _hush
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
        self._show(lambda board: board.close())
        self._metrics.close()
        threading.excepthook = threading.__excepthook__

    @contextmanager
    def _may_fail(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            log.warning("cannot write %s (%s); training goes on", what, reason)

    def _show(self, draw: Callable[[SummaryWriter], object]) -> None:
        """Draw on TensorBoard's board; once that fails, the run goes on without it."""
        if self._board is None:
            return
        try:
            draw(self._board)
        except OSError as error:
            reason = error.strerror or error
            log.warning("TensorBoard's curves end here (%s); training goes on", reason)
            self._board = None

    def advance(self) -> None:
        """One more step on the bar."""
        self._bar.update()

    def record(self, step: int, metrics: dict[str, float]) -> None:
        """One line of metrics.jsonl, its scalars in TensorBoard, the newest values on the bar."""
        self._write(step, metrics)
        scalars = {TENSORBOARD[name]: value for name, value in metrics.items()}
        for name, value in metrics.items():
            if name.endswith("loss"):
                scalars[f"bits_per_character/{name.removesuffix('_loss')}"] = value / math.log(2)
        for tag, value in scalars.items():
            add = partial(SummaryWriter.add_scalar, tag=tag, scalar_value=value, global_step=step)
            self._show(add)
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
            self._show(lambda board: board.flush())

    def event(self, step: int, text: str) -> None:
        """Something that is no metric, in metrics.jsonl and among TensorBoard's texts."""
        self._write(step, {"event": text})
        self._show(lambda board: board.add_text("event", text, step))

    def sync(self) -> None:
        """See the records onto the disk."""
        with self._may_fail("metrics.jsonl"):
            os.fsync(self._metrics.fileno())

    def _write(self, step: int, content: Mapping[str, Any]) -> None:
        """One line, with those that could not be written before, whole or not at all."""
        elapsed = round(time.perf_counter() - STARTED, 3)
        line = {"step": step, "elapsed_s": elapsed, **content}
        self._unwritten += json.dumps(line).encode() + b"\n"
        with self._may_fail("metrics.jsonl"):
            os.ftruncate(self._metrics.fileno(), self._size)  # no half of a line that failed
            rest = memoryview(self._unwritten)
            while rest:
                rest = rest[self._metrics.write(rest) :]
            self._size, self._unwritten = self._size + len(self._unwritten), b""

    def sample(self, step: int, text: str) -> None:
        """A sample, shown in TensorBoard as it stands (an indented block is no markup)."""
        block = "\n".join(f"    {line}" for line in visible(text).split("\n"))
        self._show(lambda board: board.add_text("sample", block, step))

    def attention(self, step: int, weights: Tensor) -> None:
        """The attention weights (n_layer, H, T, T) as one picture: layers down, heads across."""
        picture = tile(weights)
        self._show(lambda board: board.add_image("attention", picture, step, dataformats="HW"))

    def histograms(self, step: int, model: nn.Module) -> None:
        """The weights, and the gradients that the last step used (clipped; at step 0 none)."""
        drawn: dict[str, Tensor] = {
            f"weights/{name}": parameter for name, parameter in model.named_parameters()
        }
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            if gradient is not None and gradient.isfinite().all():  # float16's may overflow
                drawn[f"gradients/{name}"] = gradient
        for tag, values in drawn.items():
            add = partial(SummaryWriter.add_histogram, tag=tag, values=values, global_step=step)
            self._show(add)

    def embedding(self, vectors: Tensor, characters: str) -> None:
        """The vectors (V, C) of the V characters, for TensorBoard's projector.

        Written here, since `add_embedding` makes a new folder at each step it is called for.
        """
        folder = self._run / "projector"
        labels = "".join(f"{symbol(c)}\n" for c in characters)
        with self._may_fail("the projector's files"):
            folder.mkdir(exist_ok=True)
            np.savetxt(folder / "vectors.tsv", vectors.numpy(force=True), "%.6g", delimiter="\t")
            (folder / "characters.tsv").write_text(labels, "utf-8")
            (self._run / "projector_config.pbtxt").write_text(PROJECTOR, "utf-8")

    def finish(self, results: dict[str, float]) -> None:
        """The run's settings with its final metrics, for TensorBoard's HPARAMS page."""
        settings: dict[str, Any] = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, _, value in fields(self._config)
        }
        scored = {f"final/{name}": value for name, value in results.items()}
        self._show(lambda board: board.add_hparams(settings, scored, run_name="."))


def _hush(failed: threading.ExceptHookArgs) -> None:
    """TensorBoard's own thread cannot write: we are told when we next write to it."""
    if not issubclass(failed.exc_type, OSError):
        threading.__excepthook__(failed)


def _keep_records_until(path: Path, step: int) -> None:
    """Drop the records after `step`, a last line that was cut off, and that the run rolled back.

    (It will again, for the same reason.) Line by line: a long run's file may be large.
    """

    def kept() -> Iterator[bytes]:
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                try:
                    record = json.loads(line)
                    if record["step"] < step or (
                        record["step"] == step and not record.get("event", "").startswith("rolled")
                    ):
                        yield line.rstrip(b"\n") + b"\n"
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    log.warning("%s: left out a damaged line: %.60r", path, line)

    write_atomically(path, kept())
