"""The samples of a run as one table, which TensorBoard shows on its TEXT page."""

import textwrap
from contextlib import suppress
from pathlib import Path

from rich.cells import chop_cells
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata

from gpt.text.display import visible
from gpt.training.callbacks.callback import Evaluation

SAMPLES_TAG = "samples/text_summary"
SAMPLES_HEADING = ("step", "val loss", "sample")
MAX_SAMPLE_ROWS = 12  # largest number of rows without the heading
MAX_LINE_COLUMNS = 80  # width above which a line of a sample is wrapped, in columns


class SampleTable:
    """Rows of step, val loss and sample; in a resumed `run`, also those of steps before `end`."""

    def __init__(self, run: Path, end: int | None) -> None:
        self.rows = [] if end is None else _stored_rows(run, end)

    def add(self, step: int, evaluation: Evaluation) -> Summary:
        """Add the sample of `evaluation`; return the table, newest row first."""
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
    """Return the rows, of steps before `end`, of the newest sample table in the files of `run`."""
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
