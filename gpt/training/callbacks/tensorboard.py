"""A run's records as TensorBoard's event files.

torch's SummaryWriter is not used. On a full disk its thread ends in a traceback and later records
are lost; and its `purge_step` takes the steps of `loss_by_seconds`, which are seconds, for steps.
"""

import logging
import os
import platform
import time
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event, SourceMetadata
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.scalar import metadata as scalar
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary

from gpt.config.schema import values
from gpt.model.ensemble import LanguageModel, members_of
from gpt.status import phase
from gpt.text.display import symbol, visible
from gpt.training.callbacks.callback import Callback, Evaluation
from gpt.training.callbacks.jsonl import AppendOnlyFile
from gpt.training.run_context import RunContext

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
BY_SECONDS = "loss_by_seconds"
NOTICE_TAG = "training/notice"  # sorted after samples
ATTENTION_TAG = "visualization/attention"  # sorted last
LAYOUT = {  # of the CUSTOM SCALARS page; each tag is a pattern for the start of tags
    "loss (nats per character or byte)": {
        "by step": ["Multiline", ["loss/"]],
        "by seconds of training": ["Multiline", [f"{BY_SECONDS}/"]],
    }
}
PICTURE_INTERVAL_S = 60  # seconds of training between two pictures; one takes a second to draw
MIN_PICTURE_STEPS, MIN_PICTURE_S = 100, 10  # a run that is shorter in both gets no picture
PICTURE_DPI = 80  # dots per inch: the picture of a few heads fits a screen at its actual size
COUNTED_AT_ONCE = 2**24  # characters
PROJECTOR = """\
embeddings {
  tensor_name: "characters"
  tensor_path: "projector/vectors.tsv"
  metadata_path: "projector/characters.tsv"
}
"""


class TensorBoard(Callback):
    """Writes one event file each time a run starts or resumes.

    Args:
        context: the settings, text and folder of the run.
        resumed_at: the step of the checkpoint that the run continues from, if it does. Events after
            it are cut from the run's older files, so that curves continue without a repeat.
        pending: whether the events of that step are cut, too: its evaluation is repeated.
    """

    def __init__(
        self, context: RunContext, resumed_at: int | None, *, pending: bool = False
    ) -> None:
        self.context, self.folder = context, context.folder
        self.charted_s = -1  # second of the last point by seconds
        self.undrawn: tuple[int, Evaluation] | None = None  # step, newest evaluation
        self.drawn_s: float | None = None  # seconds of training at the last picture
        for path in self.folder.glob("events.out.tfevents.*"):
            if resumed_at is not None:
                _cut_after(path, resumed_at, pending)
        name = f"events.out.tfevents.{time.time():017.6f}.{platform.node()}.{os.getpid()}"
        self.file = AppendOnlyFile(self.folder / name)
        self.records = RecordWriter(self.file)
        source = SourceMetadata(writer=__name__)
        self._write(Event(file_version="brain.Event:2", source_metadata=source))
        self._add(0, summary.custom_scalars(LAYOUT))

    def on_metrics(self, step: int, elapsed_s: float, metrics: Mapping[str, float]) -> None:
        """Write the metrics by step, and the losses by seconds, at most one point a second.

        A run that is evaluated on a part of the val split has one val curve, that of the part: the
        loss on the whole split is only known at the end, and is on the HPARAMS page.
        """
        train = self.context.config.train
        if not step and train.init_from is None:  # the loss of guessing would flatten the curves
            return
        part = ""
        if "val_loss_part" in metrics:
            part = f"on the first {train.eval_characters:,} ids of the val split"
            metrics = {
                name: value
                for name, value in metrics.items()
                if name.startswith("val_loss_part") or not name.startswith("val_loss")
            }
        self._add_scalars(step, {_tag(name): value for name, value in metrics.items()}, part)
        second = round(elapsed_s)
        by_seconds = {
            TAGS[name].replace("loss", BY_SECONDS): metrics[name]
            for name in ("train_loss", "val_loss", "val_loss_part")
            if name in metrics and (name != "train_loss" or second > self.charted_s)
        }
        if by_seconds:
            self._add_scalars(second, by_seconds)
            self.charted_s = second

    def on_notice(self, step: int, elapsed_s: float, text: str) -> None:
        """Write a message as a text."""
        self._add_text(step, NOTICE_TAG, text)

    def on_evaluation(self, step: int, elapsed_s: float, evaluation: Evaluation) -> None:
        """Write the sample as a text. Draw the attention weights if a minute has passed."""
        if evaluation.sample is not None:
            self._add_text(step, "sample", visible(evaluation.sample))
        self.undrawn = step, evaluation
        if self.drawn_s is None:
            self.drawn_s = elapsed_s
        if elapsed_s - self.drawn_s >= PICTURE_INTERVAL_S:
            self._draw(elapsed_s)

    def on_end(
        self, step: int, elapsed_s: float, scores: Mapping[str, float], model: LanguageModel
    ) -> None:
        """Draw the last picture; write the character embeddings and the HPARAMS row."""
        if step >= MIN_PICTURE_STEPS or elapsed_s >= MIN_PICTURE_S:
            self._draw(elapsed_s)
        try:
            self._write_projector(model)
        except OSError as error:
            log.warning("cannot write %s (%s)", self.folder / "projector", error.strerror or error)
        settings = {
            key: value if isinstance(value, bool | int | float) else str(value or "null")
            for key, value in values(self.context.config).items()
        }
        final = {f"final/{name}": value for name, value in scores.items()}
        self._add(step, hparams_pb(settings | final, trial_id=self.folder.name))

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _draw(self, elapsed_s: float) -> None:
        """Draw the newest attention weights, but not those of step 0, which are all alike."""
        if self.undrawn is None or not self.undrawn[0]:
            return
        step, evaluation = self.undrawn
        attention = evaluation.attention
        title = f"attention weights at step {step}, on the first characters of the val split"
        if attention.members > 1:
            title += f"; member 1 of {attention.members}"
            attention = attention.first_member()
        with phase("drawing attention weights"):
            from gpt.inspection.attention_picture import (  # importing matplotlib takes a second
                draw,
                png,
            )

            content = png(draw(attention, evaluation.text, title), PICTURE_DPI)
        height, width = (int.from_bytes(content[at : at + 4], "big") for at in (20, 16))
        image = Summary.Image(
            encoded_image_string=content, height=height, width=width, colorspace=4
        )
        self._add(step, Summary(value=[Summary.Value(tag=ATTENTION_TAG, image=image)]))
        self.undrawn, self.drawn_s = None, elapsed_s

    def _write_projector(self, model: LanguageModel) -> None:
        """Write the embeddings (V, C) of the characters, with labels, for the PROJECTOR page."""
        vocabulary, ids = self.context.corpus.vocabulary, self.context.corpus.ids
        counts = np.zeros(len(vocabulary), np.int64)
        for start in range(0, len(ids), COUNTED_AT_ONCE):
            chunk = ids[start : start + COUNTED_AT_ONCE]
            counts += np.bincount(chunk, minlength=len(vocabulary))
        labels = ["character\tcount\tname\tcategory"] + [
            f"{symbol(name)}\t{count}\t{_describe(name, id_ == vocabulary.unknown_id)}"
            for id_, (name, count) in enumerate(zip(vocabulary.names, counts, strict=True))
        ]
        folder, vectors = self.folder / "projector", members_of(model)[0].token_embedding.weight
        folder.mkdir(exist_ok=True)
        np.savetxt(folder / "vectors.tsv", vectors.numpy(force=True), "%.6g", delimiter="\t")
        (folder / "characters.tsv").write_text("\n".join([*labels, ""]), "utf-8")
        (self.folder / "projector_config.pbtxt").write_text(PROJECTOR, "utf-8")

    def _add_scalars(self, step: int, values: Mapping[str, float], val_part: str = "") -> None:
        """Write one point on the chart of each tag; `val_part` describes the val losses."""
        described = scalar.create_summary_metadata(display_name="", description=val_part)
        points = [
            Summary.Value(
                tag=tag,
                simple_value=value,
                metadata=described if val_part and "/val" in tag else None,
            )
            for tag, value in values.items()
        ]
        self._add(step, Summary(value=points))

    def _add_text(self, step: int, tag: str, content: str) -> None:
        """Write a text, indented so that it is not read as Markdown."""
        block = "\n".join(f"    {line}" for line in content.split("\n"))
        self._add(step, summary.text(tag, block))

    def _add(self, step: int, content: Summary) -> None:
        self._write(Event(step=step, summary=content))

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self.records.write(event.SerializeToString())


def _tag(metric: str) -> str:
    """Return the tag of a metric, such as `val_loss` or `val_loss_member_2`."""
    name, _, member = metric.partition("_member_")
    return f"{TAGS[name].replace('loss/', MEMBERS_TAG)}_{member}" if member else TAGS[name]


def _describe(name: str, is_unknown: bool) -> str:
    """Return the Unicode name and category of a character; bytes beyond ASCII have none."""
    if is_unknown or len(name) > 1:
        return f"{'all other characters' if is_unknown else f'byte 0x{name[2:]}'}\t-"
    return f"{unicodedata.name(name, f'U+{ord(name):04X}')}\t{unicodedata.category(name)}"


def _cut_after(path: Path, step: int, pending: bool) -> None:
    """Cut an event file before its first event after `step`, or before its HPARAMS row.

    If the evaluation of `step` is `pending`, cut before that. Events lie in the order in which they
    were written. Damaged content is cut off, too: TensorBoard reads no further.
    """
    try:
        with path.open("r+b") as file:
            size = 0
            for event, end in _events(file):
                tags = [value.tag for value in event.summary.value]
                by_seconds = any(tag.startswith(BY_SECONDS) for tag in tags)
                notice = any(tag.startswith(NOTICE_TAG) for tag in tags)
                comes_again = event.step > step or (pending and event.step == step and not notice)
                if (comes_again and not by_seconds) or SESSION_START_INFO_TAG in tags:
                    break
                size = end
            file.truncate(size)
    except OSError as error:
        log.warning("cannot write %s (%s); training continues", path, error.strerror or error)


def _events(file: BinaryIO) -> Iterator[tuple[Event, int]]:
    """Yield each event up to the first damaged one, and the position of its end."""
    size = os.fstat(file.fileno()).st_size
    while len(header := file.read(12)) == 12:  # the length of the event, a checksum
        length = int.from_bytes(header[:8], "little")
        if file.tell() + length + 4 > size:
            return
        try:
            event = Event.FromString(file.read(length))
        except DecodeError:
            return
        file.read(4)  # a checksum
        yield event, file.tell()
