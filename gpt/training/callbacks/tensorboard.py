"""Write a run's records as TensorBoard's event files.

torch's SummaryWriter is not used. On a full disk, its thread ends in a traceback, and later records
are lost.
"""

import os
import platform
import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary

from gpt.text.display import visible
from gpt.training.callbacks.callback import Callback, Evaluation
from gpt.training.callbacks.jsonl import AppendOnlyFile
from gpt.training.run_context import RunContext

TAGS = {  # by metric; TensorBoard sorts by tag, so that the loss comes first
    "train_loss": "loss/train",
    "val_loss": "loss/val",
    "val_loss_per_character": "loss/val_per_character",
    "val_loss_part": "loss/val",
    "lr": "training/learning_rate",
    "grad_norm": "training/gradient_norm",
    "chars_per_s": "training/characters_per_second",
}


class TensorBoard(Callback):
    """Writes an event file each time a run starts or resumes.

    Args:
        context: the settings, text and folder of the run.
        resumed_at: the step of the checkpoint that the run resumes from; None for a new run.
            TensorBoard ignores earlier events of later steps.
        pending: whether to ignore earlier events of step `resumed_at`, too, because its evaluation
            is repeated.
    """

    def __init__(
        self, context: RunContext, resumed_at: int | None, *, pending: bool = False
    ) -> None:
        self.context = context
        # TensorBoard reads a run's files in the order of their names
        name = f"events.out.tfevents.{time.time():017.6f}.{platform.node()}.{os.getpid()}"
        self.file = AppendOnlyFile(context.folder / name)
        self.records = RecordWriter(self.file)
        self._write(Event(file_version="brain.Event:2"))
        if resumed_at is not None:
            started = SessionLog(status=SessionLog.START)
            step = resumed_at if pending else resumed_at + 1
            self._write(Event(step=step, session_log=started))

    def on_metrics(self, step: int, elapsed_s: float, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step.

        If the val loss is measured on a part of the val split, the loss on the whole split is left
        out: it is known only at the end, and there should be one val curve.
        """
        if (
            not step and self.context.config.train.init_from is None
        ):  # the loss of guessing would flatten the curves
            return
        points = []
        for name, value in metrics.items():
            metric, _, member = name.partition("_member_")
            if "val_loss_part" in metrics and metric in ("val_loss", "val_loss_per_character"):
                continue
            tag = f"loss_of_members/val_{member}" if member else TAGS[metric]
            points.append(Summary.Value(tag=tag, simple_value=value))
        self._write(Event(step=step, summary=Summary(value=points)))

    def on_evaluation(self, step: int, elapsed_s: float, evaluation: Evaluation) -> None:
        """Write the sample as a text, indented so that it is not read as Markdown."""
        if evaluation.sample is not None:
            lines = visible(evaluation.sample).split("\n")
            block = "\n".join(f"    {line}" for line in lines)
            self._write(Event(step=step, summary=summary.text("sample", block)))

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _write(self, event: Event) -> None:
        """Write `event` with the current time."""
        event.wall_time = time.time()
        self.records.write(event.SerializeToString())
