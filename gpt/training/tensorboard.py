"""Write a run's records as TensorBoard's event files.

torch's SummaryWriter is not used, because on a full disk its thread ends in a traceback, and all
later records are lost.
"""

import os
import platform
import time
from collections.abc import Mapping
from textwrap import TextWrapper
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from gpt.model.attention_maps import attend
from gpt.model.ensemble import LanguageModel, members_of
from gpt.terminal import phase, visible
from gpt.text.batches import to_torch
from gpt.training.callbacks import Callback
from gpt.training.metrics_file import AppendOnlyFile
from gpt.training.run_context import Outcome, RunContext

TAGS = {  # by metric; TensorBoard sorts tags, so losses come first
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
PICTURE_DPI = 80  # dots per inch; low enough for pictures of a few heads to fit a screen
MAX_LINE_COLUMNS = 80  # largest length of a line of a sample; longer lines are wrapped
WHOLE = ("val_loss", "val_loss_per_character")  # losses on the whole val split


class TensorBoard(Callback):
    """Writes events to a file. Each start, resume or rollback of the run opens a new file."""

    def __init__(self, context: RunContext, next_step: int | None) -> None:
        """Open a new event file. Its name contains the time: TensorBoard sorts files by name.

        `next_step` is None for a new run. After a resume or a rollback, it is the step of the first
        new event. TensorBoard then ignores the events of older files from this step on.
        """
        self.context = context
        name = f"events.out.tfevents.{time.time():017.6f}.{platform.node()}.{os.getpid()}"
        self.events = RecordWriter(AppendOnlyFile(context.folder / name))
        self.write(0, file_version="brain.Event:2")
        if next_step is not None:
            self.write(next_step, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, **content: Any) -> None:
        """Write an event of `step`. `content` sets a field of `Event`, such as `summary`."""
        event = Event(step=step, wall_time=time.time(), **content)
        self.events.write(event.SerializeToString())

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step.

        If evaluations score only a part of the val split, omit the final loss on the whole split:
        it would not fit the curve.
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
        self.write(step, summary=Summary(value=points))

    def on_sample(self, step: int, text: str) -> None:
        """Write `text`, indented, so that TensorBoard shows it without interpreting it."""
        wrap = TextWrapper(MAX_LINE_COLUMNS, replace_whitespace=False, drop_whitespace=False).wrap
        lines = [wrap(line) or [""] for line in visible(text).split("\n")]
        block = "\n".join(f"    {part}" for parts in lines for part in parts)
        self.write(step, summary=text_pb("sample", block))

    def on_end(self, outcome: Outcome, model: LanguageModel) -> None:
        """Write a picture of the attention weights on the first characters of the val split."""
        config, corpus, step = self.context.config, self.context.corpus, outcome.step
        title = f"attention weights at step {step}, on the first characters of val"
        if (members := config.model.ensemble) > 1:
            title += f"; member 1 of {members}"
        with phase("drawing attention weights"):
            # importing matplotlib takes a second
            from gpt.inspection.pictures import draw_heads, png

            excerpt = corpus.val[: min(config.model.T, ATTENTION_CHARACTERS)]
            attention = attend(members_of(model)[0], to_torch(excerpt))
            names = corpus.vocabulary.names_of(excerpt.tolist())
            content = png(draw_heads(attention, names, title), PICTURE_DPI)
        height, width = (int.from_bytes(content[at : at + 4], "big") for at in (20, 16))
        image = Summary.Image(encoded_image_string=content, height=height, width=width)
        value = Summary.Value(tag="visualization/attention", image=image)  # shown as the last tag
        self.write(step, summary=Summary(value=[value]))
