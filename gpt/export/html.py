"""Export a model as one HTML file that runs it in a browser, without a network connection.

The page contains three kinds of elements for the script that runs the model:

    <script type="application/json" id="header">            what `page_header` returns
    <script type="application/octet-stream" id="weights">   base64 of raw deflate; "counts" likewise
    <script type="text/plain" id="worker">                  the source of the worker, see worker.js

`header.arrays` lists the arrays in the bytes of `weights`, and `header.counts.arrays` those in the
bytes of `counts`.
"""

import base64
import logging
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.export.exported_run import ExportedRun
from gpt.export.page_counts import page_counts
from gpt.export.shipped_weights import MEASURED_IDS, ShippedWeights, choose_rounding
from gpt.inspection.html_page import render_page
from gpt.inspection.output import write_out
from gpt.model.shapes import parameter_count
from gpt.runs.format import CheckpointData
from gpt.status import phase

log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[np.generic]]

ALIGNMENT = 4  # bytes to which each array is padded
# each of these is joined to one script, in this order
PAGE_FILES = ("vocabulary.js", "client.js", "text.js", "bars.js", "inside_view.js", "page.js")
WORKER_FILES = (
    "arrays.js",
    "random.js",
    "sampler.js",
    "kernel.js",
    "linear.js",
    "network.js",
    "ngram_tree.js",
    "mixture.js",
    "model.js",
    "generate.js",
    "inside.js",
    "worker.js",
)


def export_html(run: ExportedRun, out: Path) -> None:
    """Write a page that runs the model of `run` to the file `out`."""
    write_out(out, html_page(run))


def html_page(run: ExportedRun) -> bytes:
    """Return a page that runs the model of `run`, as UTF-8."""
    header, data = page_content(run)
    return render_page(
        "page",
        folder=files("gpt.export") / "page",
        scripts=PAGE_FILES,
        title=header["title"],
        header=header,
        data=data,
        worker=worker_source(),
    )


def page_content(run: ExportedRun) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the JSON values of the element `header`, and the texts of the data elements by id."""
    with phase("choosing the precision of the weights"):
        shipped = choose_rounding(run.checkpoint, run.val)
    header = page_header(run.folder.resolve().name, run.checkpoint, shipped)
    data = {"weights": _packed(shipped.arrays)}
    if run.checkpoint.mixture is not None:
        values, arrays = page_counts(run.checkpoint.mixture)
        header["counts"] = values | {"arrays": _entries(arrays)}
        data["counts"] = _packed(arrays)
        log.warning(
            "for the n-gram counts, the page contains the training text or its n-grams: share it "
            "only where you may share that text, or train with --set model.counts=0"
        )
    return header, data


def worker_source() -> str:
    """Return the JavaScript that the page's worker runs."""
    folder = files("gpt.export") / "page"
    return "".join((folder / name).read_text("utf-8") for name in WORKER_FILES)


def page_header(title: str, checkpoint: CheckpointData, shipped: ShippedWeights) -> dict[str, Any]:
    """Return what the page needs to know of a model, as JSON values.

    Args:
        title: the name of the run.
        checkpoint: the checkpoint of the run.
        shipped: its rounded weights.
    """
    config, vocabulary = checkpoint.config, checkpoint.vocabulary
    data = config.data
    return {
        "title": title,
        "step": checkpoint.step,
        "val_loss": checkpoint.val_loss,  # nats per id; null if the run was not evaluated
        "text_sha256": checkpoint.text_sha256,
        "parameters": parameter_count(config.model, len(vocabulary)),
        "weights": {
            "kind": shipped.kind,
            "loss_rise": shipped.loss_rise,  # nats per id; null if there was no val text
            "measured_ids": MEASURED_IDS,
        },
        "vocabulary": {
            "characters": vocabulary.characters,  # in the order of their ids
            "unknown": vocabulary.unknown,  # characters that share the last id; 0: there is none
            "bytes": vocabulary.is_bytes,  # ids are the 256 bytes of UTF-8
            "size": len(vocabulary),
        },
        # how to change a prompt before it is encoded
        "text": {
            "newlines": data.newlines,
            "normalize": data.normalize,
            "lowercase": data.lowercase,
        },
        "model": config.model.model_dump(),
        "sample": config.sample.model_dump(),
        "seed": config.seed,
        "arrays": _entries(shipped.arrays),
        "counts": None,
    }


def _entries(arrays: Arrays) -> list[dict[str, Any]]:
    """Return the name, type and shape of each array, as JSON values."""
    return [
        {"name": name, "dtype": array.dtype.name, "shape": array.shape}
        for name, array in arrays.items()
    ]


def _packed(arrays: Arrays) -> str:
    """Return the bytes of all arrays, compressed by raw deflate and encoded in base64.

    Each array is little-endian, and padded with zeros to a multiple of ALIGNMENT bytes.
    """
    compressor, parts = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS), []
    for array in arrays.values():
        content = array.astype(array.dtype.newbyteorder("<")).tobytes()
        parts += [compressor.compress(content + bytes(-len(content) % ALIGNMENT))]
    return base64.b64encode(b"".join([*parts, compressor.flush()])).decode()
