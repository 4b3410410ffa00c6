"""What a run shows while it trains: the progress bar, metrics.jsonl, TensorBoard."""

import logging
import shutil
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from tqdm.std import tqdm
from tqdm.utils import disp_trim

from gpt.config.schema import Config, values
from gpt.evaluation.attention_weights import Attention
from gpt.status import phase
from gpt.text.display import symbol, visible
from gpt.text.vocabulary import Ids, Vocabulary
from gpt.training.monitor.jsonl import JSONLines
from gpt.training.monitor.progress import evaluation_bar, training_bar
from gpt.training.monitor.tensorboard import BY_SECONDS, NOTICE_TAG, EventFile

log = logging.getLogger(__name__)

TAGS = {  # TensorBoard sorts by tag: the loss comes first
    "train_loss": "loss/train",
    "val_loss": "loss/val",
    "val_loss_per_character": "loss/val_per_character",
    "val_loss_part": "loss/val",
    "lr": "training/learning_rate",
    "grad_norm": "training/gradient_norm",
    "chars_per_s": "training/characters_per_second",
}
MEMBERS_TAG = "loss_of_members/"  # followed by train_1, val_1, val_2 and so on
ATTENTION_TAG = "visualization/attention"  # sorted last
SECONDS_BETWEEN_PICTURES = 60  # the first takes a second to draw, with matplotlib's import
MIN_STEPS_FOR_PICTURE = (
    100  # steps; a run shorter than this and than MIN_SECONDS_FOR_PICTURE is not drawn
)
MIN_SECONDS_FOR_PICTURE = 10  # seconds of training
PICTURE_DPI = 80  # dots per inch: the picture of a few heads fits a screen at its actual size
SAMPLE_LINES = 3  # shown in the terminal at each evaluation
WIDEST_SAMPLE = 100  # columns
COUNTED_AT_ONCE = 2**24  # characters

PROJECTOR = """\
embeddings {
  tensor_name: "characters"
  tensor_path: "projector/vectors.tsv"
  metadata_path: "projector/characters.tsv"
}
"""


class Monitor:
    """Records a run's metrics under its folder and shows them as they come.

    Given the step of the checkpoint that a run is resumed at, it drops the records after it, so
    that the curves continue without a repeat; also the metrics of that step, if its evaluation is
    `pending`. `elapsed_before` is the seconds of training up to that checkpoint. What cannot be
    written, on a full disk say, is logged once and ends no run: records are kept and written once
    there is room.
    """

    def __init__(
        self,
        run: Path,
        config: Config,
        resumed_at: int | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        elapsed_before: float = 0.0,
        pending: bool = False,
    ) -> None:
        self._run, self._config = run, config
        self._clock, self._began = clock, clock() - elapsed_before
        self._latest: dict[str, float] = {}
        self._charted_s = -1  # the second of the last point by seconds
        self._picture: tuple[int, Attention, Sequence[str]] | None = None  # step, attention, text
        self._drawn_s = self.elapsed_s
        self._metrics = JSONLines(run / "metrics.jsonl", resumed_at, pending=pending)
        self._events = EventFile(run, resumed_at, pending=pending)
        self._bar = training_bar(config.train.steps, resumed_at or 0)

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.close()
        self._events.close()
        self._metrics.close()

    @property
    def elapsed_s(self) -> float:
        """Seconds of training so far, over all resumes."""
        return self._clock() - self._began

    def advance(self) -> None:
        """One more step on the bar."""
        self._bar.update()

    def replan(self, steps: int) -> None:
        """So many steps on the bar."""
        self._bar.total = steps

    def evaluating(self, total: int) -> AbstractContextManager[Callable[[int], object]]:
        """A bar for an evaluation of `total` characters, shown if it takes more than a second.

        Gives `advance(characters)`.
        """
        return evaluation_bar(total)

    def record(self, step: int, metrics: dict[str, float]) -> None:
        """One line of metrics.jsonl, its scalars in TensorBoard, the newest values on the bar."""
        elapsed_s = self._write(step, metrics)
        self._chart(step, elapsed_s, metrics)
        self._latest |= metrics
        shown = [
            f"{name} {self._latest[key]:.4f}"
            for name, key in [
                ("val", "val_loss"),
                ("val per character", "val_loss_per_character"),
                ("part of val", "val_loss_part"),
                ("train", "train_loss"),
            ]
            if key in self._latest
        ]
        name = "val_loss" if "val_loss" in metrics else "val_loss_part"
        if members := [metrics[key] for key in metrics if key.startswith(f"{name}_member_")]:
            shown.insert(1, f"members {min(members):.4f} to {max(members):.4f}")
        if pace := self._latest.get("chars_per_s"):
            shown.append(f"{tqdm.format_sizeof(pace)} chars/s")
        self._bar.set_postfix_str(", ".join(shown), refresh=False)
        if metrics.keys() & {"val_loss", "val_loss_part"}:
            log.info("step %d: %s", step, ", ".join(shown))

    def event(self, step: int, text: str) -> None:
        """Write a line that is no metric to metrics.jsonl, such as a plan."""
        self._write(step, {"event": text})

    def notice(self, step: int, text: str) -> None:
        """Write a notice, such as a skipped step, to metrics.jsonl and TensorBoard's texts."""
        self.event(step, text)
        self._events.text(step, NOTICE_TAG, text)

    def sync(self) -> None:
        """Flush the records to the disk."""
        self._metrics.sync()

    def sample(self, step: int, text: str) -> None:
        """A sample, in TensorBoard, and its first lines in the terminal."""
        text = visible(text)
        self._events.text(step, "sample", text)
        width = min(shutil.get_terminal_size().columns, WIDEST_SAMPLE)
        lines = text.expandtabs().strip("\n").split("\n")
        first = [disp_trim(f"  {line}", width) for line in lines]
        shown = first[:SAMPLE_LINES]
        log.info("sample at step %d:" + len(shown) * "\n%s", step, *shown)

    def attention(self, step: int, attention: Attention, text: Sequence[str]) -> None:
        """Keep attention weights on a text, given by its characters, and draw them if it is time.

        They are drawn at most once a minute, and at the end of the run, see `finish`. Of an
        ensemble the heads of the first member are drawn.
        """
        self._picture = step, attention, text
        if self.elapsed_s - self._drawn_s >= SECONDS_BETWEEN_PICTURES:
            self._draw()

    def histograms(self, step: int, model: nn.Module) -> None:
        """The parameters, and the gradients that the last step used (clipped; at step 0 none)."""
        for name, parameter in model.named_parameters():
            self._events.histogram(step, f"parameters/{name}", parameter)
            gradient = parameter.grad
            if gradient is not None and gradient.isfinite().all():  # float16's may overflow
                self._events.histogram(step, f"gradients/{name}", gradient)

    def embedding(self, vectors: Tensor, vocabulary: Vocabulary, ids: Ids) -> None:
        """The vectors (V, C) of the V characters of a text, for TensorBoard's projector.

        Each is labelled with its sign, its count in the text (given by its ids), Unicode name and
        category.
        """
        counts = np.zeros(len(vocabulary), np.int64)
        for start in range(0, len(ids), COUNTED_AT_ONCE):
            chunk = ids[start : start + COUNTED_AT_ONCE]
            counts += np.bincount(chunk, minlength=len(vocabulary))
        labels = ["character\tcount\tname\tcategory"] + [
            f"{symbol(name)}\t{n}\t{_description(name, id_ == vocabulary.unknown_id)}"
            for id_, (name, n) in enumerate(zip(vocabulary.names, counts, strict=True))
        ]
        folder = self._run / "projector"
        try:
            folder.mkdir(exist_ok=True)
            np.savetxt(folder / "vectors.tsv", vectors.numpy(force=True), "%.6g", delimiter="\t")
            (folder / "characters.tsv").write_text("\n".join([*labels, ""]), "utf-8")
            (self._run / "projector_config.pbtxt").write_text(PROJECTOR, "utf-8")
        except OSError as error:
            log.warning("cannot write %s (%s)", folder, error.strerror or error)

    def finish(self, step: int, results: dict[str, float]) -> None:
        """Draw the last picture, and write the settings and results for the HPARAMS page."""
        if step >= MIN_STEPS_FOR_PICTURE or self.elapsed_s >= MIN_SECONDS_FOR_PICTURE:
            self._draw()
        settings = {
            key: value if isinstance(value, bool | int | float) else str(value or "null")
            for key, value in values(self._config).items()
        }
        final = {f"final/{name}": value for name, value in results.items()}
        self._events.hparams(step, settings | final, self._run.name)

    def _write(self, step: int, content: Mapping[str, Any]) -> float:
        """One line of metrics.jsonl; the seconds of training in it."""
        elapsed_s = round(self.elapsed_s, 3)
        self._metrics.write({"step": step, "elapsed_s": elapsed_s, **content})
        return elapsed_s

    def _chart(self, step: int, elapsed_s: float, metrics: dict[str, float]) -> None:
        """Write the metrics to TensorBoard by step, and the losses by seconds, one point a second.

        A run evaluated on a part of the val split has one curve of that part: the loss on the whole
        split, known at its end alone, is on the HPARAMS page and in metrics.jsonl.
        """
        if not step and self._config.train.init_from is None:  # guessing would flatten the curves
            return
        part = ""
        if "val_loss_part" in metrics:
            part = f"on the first {self._config.train.eval_characters:,} ids of the val split"
            metrics = {
                name: value
                for name, value in metrics.items()
                if name.startswith("val_loss_part") or not name.startswith("val_loss")
            }
        self._events.scalars(step, {_tag(name): value for name, value in metrics.items()}, part)
        second = round(elapsed_s)
        by_seconds = {
            TAGS[name].replace("loss", BY_SECONDS): metrics[name]
            for name in ("train_loss", "val_loss", "val_loss_part")
            if name in metrics and (name != "train_loss" or second > self._charted_s)
        }
        if by_seconds:
            self._events.scalars(second, by_seconds)
            self._charted_s = second

    def _draw(self) -> None:
        if self._picture is None or not self._picture[0]:
            return
        step, attention, text = self._picture
        title = f"attention weights at step {step}, on the first characters of the val split"
        if attention.members > 1:
            title += f"; member 1 of {attention.members}"
            attention = attention.first_member()
        with phase("drawing attention weights"):
            from gpt.inspection.attention_picture import draw, png  # matplotlib takes its time

            content = png(draw(attention, text, title), PICTURE_DPI)
        self._events.picture(step, ATTENTION_TAG, content)
        self._picture, self._drawn_s = None, self.elapsed_s


def _tag(metric: str) -> str:
    """Return the tag of a metric; `val_loss_member_2` is the second member's of an ensemble."""
    name, _, member = metric.partition("_member_")
    return f"{TAGS[name].replace('loss/', MEMBERS_TAG)}_{member}" if member else TAGS[name]


def _description(name: str, is_unknown: bool) -> str:
    """Unicode name and category of a character; of a byte beyond ASCII it has none."""
    if is_unknown or len(name) > 1:
        return f"{'all other characters' if is_unknown else f'byte 0x{name[2:]}'}\t-"
    return f"{unicodedata.name(name, f'U+{ord(name):04X}')}\t{unicodedata.category(name)}"
