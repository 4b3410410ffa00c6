"""Write a run's records as TensorBoard's event files.

torch's SummaryWriter is not used, because on a full disk its thread ends in a traceback, and all
later records are lost.
"""

import os
import platform
import textwrap
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.cells import chop_cells
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from gpt.config.schema import values
from gpt.model.ensemble import LanguageModel
from gpt.status import phase
from gpt.text.display import visible
from gpt.training.callbacks.callback import Callback, Evaluation
from gpt.training.callbacks.jsonl import AppendOnlyFile
from gpt.training.run_context import Outcome, RunContext

TAGS = {  # by metric; TensorBoard sorts tags, so the loss comes first
    "train_loss": "loss/train",
    "val_loss": "loss/val",
    "val_loss_per_character": "loss/val_per_character",
    "val_loss_part": "loss/val",
    "lr": "training/learning_rate",
    "grad_norm": "training/gradient_norm",
    "chars_per_s": "training/characters_per_second",
    "passes": "training/passes_over_the_text",
}
ATTENTION_CHARACTERS = 32  # characters of the val split whose attention weights are drawn
SAMPLES_TAG = "samples/text_summary"
SAMPLES_HEADING = ("step", "val loss", "sample")
MAX_SAMPLE_ROWS = 12  # largest number of rows below the heading
MAX_LINE_COLUMNS = 80  # width above which a line of a sample is wrapped, in columns
WHOLE = ("val_loss", "val_loss_per_character")  # losses on the whole val split


class TensorBoard(Callback):
    """Writes an event file at each start or resume, and one for the HPARAMS page at the end."""

    def __init__(self, context: RunContext, next_step: int | None) -> None:
        """Open a new event file.

        `next_step` is None for a new run. After a resume or a rollback, it is the step of the first
        new event. TensorBoard then ignores older event files from this step on.
        """
        self.context = context
        self.samples = SampleTable(context.folder, next_step)
        self.events = EventFile(context.folder)
        if next_step is not None:
            for path in context.folder.glob("events.out.tfevents.*.hparams"):
                path.unlink()
            self.events.add(next_step, session_log=SessionLog(status=SessionLog.START))

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step.

        If evaluations score only a part of the val split, omit the final loss on the whole split:
        it would not fit the curve. The HPARAMS page shows this loss.
        """
        if not step and self.context.config.train.init_from is None:
            return  # the loss of an untrained model would flatten the curves
        points = []
        for name, value in metrics.items():
            metric, _, member = name.partition("_member_")
            if "val_loss_part" in metrics and metric in WHOLE:
                continue
            tag = f"loss_of_members/val_{member}" if member else TAGS[metric]
            points.append(Summary.Value(tag=tag, simple_value=value))
        self.events.add(step, summary=Summary(value=points))

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Write the table of samples so far; TensorBoard shows the newest table first."""
        if evaluation.sample is not None:
            self.events.add(step, summary=self.samples.add(step, evaluation))

    def on_end(self, outcome: Outcome, model: LanguageModel) -> None:
        """Write a picture of attention weights, and settings and scores for the HPARAMS page."""
        self.draw_attention(outcome.step, model)
        row = {
            key: value if isinstance(value, bool | int | float) else str(value or "null")
            for key, value in values(self.context.config).items()
        }
        for score in ("val_loss", "best_val_loss", "bits_per_byte"):
            row[f"final/{score}"] = getattr(outcome, score)
        page = hparams_pb(row, trial_id=self.context.folder.name)
        EventFile(self.context.folder, ".hparams").add(outcome.step, summary=page)

    def draw_attention(self, step: int, model: LanguageModel) -> None:
        """Write a picture of the attention weights on the first characters of the val split."""
        config, corpus = self.context.config, self.context.corpus
        if (draw := self.context.extras.draw_attention) is None:
            return
        title = f"attention weights at step {step}, on the first characters of val"
        if (members := config.model.ensemble) > 1:
            title += f"; member 1 of {members}"
        with phase("drawing attention weights"):
            excerpt = corpus.val[: min(config.model.T, ATTENTION_CHARACTERS)]
            content = draw(model, corpus, excerpt, title)
        height, width = (int.from_bytes(content[at : at + 4], "big") for at in (20, 16))
        image = Summary.Image(encoded_image_string=content, height=height, width=width)
        value = Summary.Value(tag="visualization/attention", image=image)  # sorted last
        self.events.add(step, summary=Summary(value=[value]))


class EventFile:
    """A new event file. Its name contains the time, because TensorBoard sorts files by name."""

    def __init__(self, folder: Path, suffix: str = "") -> None:
        name = f"events.out.tfevents.{time.time():017.6f}.{platform.node()}.{os.getpid()}{suffix}"
        self.records = RecordWriter(AppendOnlyFile(folder / name))
        self.add(0, file_version="brain.Event:2")

    def add(self, step: int, **content: Any) -> None:
        """Write an event of `step`. `content` sets a field of `Event`, such as `summary`."""
        event = Event(step=step, wall_time=time.time(), **content)
        self.records.write(event.SerializeToString())


class SampleTable:
    """Table of at most MAX_SAMPLE_ROWS samples of a run, with their steps and val losses.

    If `end` is set, the samples before step `end` are first read from the event files in the
    folder `run`.
    """

    def __init__(self, run: Path, end: int | None) -> None:
        self.rows = [] if end is None else _stored_rows(run, end)

    def add(self, step: int, evaluation: Evaluation) -> Summary:
        """Add the sample of `evaluation` at `step`; return the table, newest sample first."""
        losses = evaluation.losses
        loss = losses.get("val_loss", losses.get("val_loss_part"))
        lines = visible(evaluation.sample or "").split("\n")
        block = "\n".join(f"    {part}" for line in lines for part in _wrapped(line))
        self.rows.append((str(step), "-" if loss is None else f"{loss:.4f}", block))
        if len(self.rows) > MAX_SAMPLE_ROWS:  # remove the row that leaves the smallest gap
            steps = [int(row[0]) for row in self.rows]
            gaps = [after - before for before, after in zip(steps, steps[2:], strict=False)]
            del self.rows[1 + gaps.index(min(gaps))]
        cells = [cell.encode() for row in (SAMPLES_HEADING, *self.rows[::-1]) for cell in row]
        sizes = [TensorShapeProto.Dim(size=n) for n in (len(self.rows) + 1, len(SAMPLES_HEADING))]
        shape = TensorShapeProto(dim=sizes)
        table = TensorProto(dtype=DT_STRING, string_val=cells, tensor_shape=shape)
        metadata = create_summary_metadata("samples", "")
        return Summary(value=[Summary.Value(tag=SAMPLES_TAG, metadata=metadata, tensor=table)])


def _stored_rows(run: Path, end: int) -> list[tuple[str, str, str]]:
    """Return the rows of the newest table before step `end` in the event files of `run`."""
    rows: list[tuple[str, str, str]] = []
    for path in sorted(run.glob("events.out.tfevents.*")):
        with suppress(Exception):  # a file that cannot be read must not prevent a resume
            for event in LegacyEventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    if value.tag == SAMPLES_TAG and event.step < end:
                        cells = [cell.decode() for cell in value.tensor.string_val]
                        rows = [*zip(cells[3::3], cells[4::3], cells[5::3], strict=True)][::-1]
    return rows


def _wrapped(line: str) -> list[str]:
    parts = textwrap.wrap(line, MAX_LINE_COLUMNS, replace_whitespace=False, drop_whitespace=False)
    return [piece for part in parts or [""] for piece in chop_cells(part, MAX_LINE_COLUMNS) or [""]]
