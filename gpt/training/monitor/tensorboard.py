"""A run's records as TensorBoard's event files.

Its format: records of a length, a checksum, an Event protocol buffer and its checksum. They are
written here and not by SummaryWriter, whose thread ends in a traceback on a full disk.
"""

import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event, SourceMetadata
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.scalar import metadata as scalar
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor
from torch.utils.tensorboard import summary

from gpt.training.monitor.append import AppendOnlyFile

log = logging.getLogger(__name__)

BY_SECONDS = "loss_by_seconds"
NOTICE_TAG = "training/notice"  # texts are sorted by tag: samples come before notices
LAYOUT = {  # of the CUSTOM SCALARS page; a tag is a pattern that tags begin with
    "loss (nats per character or byte)": {
        "by step": ["Multiline", ["loss/"]],
        "by seconds of training": ["Multiline", [f"{BY_SECONDS}/"]],
    }
}
HISTOGRAM_BINS = 100  # TensorBoard itself draws 30


class EventFile:
    """One event file of a run: each time a run starts or resumes it begins another.

    On a resume, the events after its step are cut from the files that are there: TensorBoard's
    own way, a purge by step, would miss those of `loss_by_seconds`, whose steps are seconds.
    """

    def __init__(self, run: Path, resumed_at: int | None, *, pending: bool = False) -> None:
        for path in run.glob("events.out.tfevents.*"):
            if resumed_at is not None:
                _cut_after(path, resumed_at, pending)
        name = f"events.out.tfevents.{time.time():017.6f}.{platform.node()}.{os.getpid()}"
        self._file = AppendOnlyFile(run / name)
        self._records = RecordWriter(self._file)
        writer = SourceMetadata(writer=__name__)
        self._write(Event(file_version="brain.Event:2", source_metadata=writer))
        self._add(0, summary.custom_scalars(LAYOUT))

    def scalars(self, step: int, values: Mapping[str, float], val_part: str = "") -> None:
        """Write one point on the chart of each tag.

        `val_part`, such as "on the first 4,096 ids of the val split", describes the val losses.
        TensorBoard shows the description that comes first.
        """
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

    def text(self, step: int, tag: str, content: str) -> None:
        """A text, shown as it is: an indented block is not read as Markdown."""
        block = "\n".join(f"    {line}" for line in content.split("\n"))
        self._add(step, summary.text(tag, block))

    def picture(self, step: int, tag: str, png: bytes) -> None:
        """A picture, given as the content of a PNG file."""
        height, width = (int.from_bytes(png[at : at + 4], "big") for at in (20, 16))
        image = Summary.Image(encoded_image_string=png, height=height, width=width, colorspace=4)
        self._add(step, Summary(value=[Summary.Value(tag=tag, image=image)]))

    def histogram(self, step: int, tag: str, values: Tensor) -> None:
        """How the values, which are finite, are distributed."""
        self._add(step, summary.histogram(tag, values.numpy(force=True), HISTOGRAM_BINS))

    def hparams(self, step: int, values: Mapping[str, bool | float | str], name: str) -> None:
        """A row of the HPARAMS page, which shows first the columns in which runs differ."""
        self._add(step, hparams_pb(values, trial_id=name))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, step: int, content: Summary) -> None:
        self._write(Event(step=step, summary=content))

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())


def _cut_after(path: Path, step: int, pending: bool) -> None:
    """Cut an event file before its first event after `step`, or before the settings at its end.

    If the evaluation of `step` is `pending`, before what was written of it. The events lie in the
    order in which they were written. What is damaged is cut off, too: TensorBoard reads no further.
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
    """Each event of a file up to the first that is damaged, and where it ends."""
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
