"""Export a model as one HTML file that runs it in a browser, without a network connection.

The page contains three kinds of elements for the script that runs the model:

    <script type="application/json" id="header">            what `page_header` returns
    <script type="application/octet-stream" id="weights">   base64 of raw deflate; "counts" likewise
    <script type="text/plain" id="worker">                  the source of the worker, see worker.js

The bytes of `weights` are those of the arrays in `header.arrays`, in this order, each padded with
zeros to a multiple of ALIGNMENT bytes. The bytes of `counts` are the ids of the train split, from
which the worker counts n-grams: this takes a twentieth of the space of the counts.
"""

import base64
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from gpt.export.exported_run import ExportedRun
from gpt.export.shipped_weights import MEASURED_IDS, ShippedWeights, choose_rounding
from gpt.inspection.output import write_out
from gpt.model.shapes import parameter_count
from gpt.runs.format import CheckpointData
from gpt.status import phase

ALIGNMENT = 4  # bytes
# joined to one script, in this order
WORKER_FILES = (
    "arrays.js",
    "random.js",
    "sampler.js",
    "linear.js",
    "network.js",
    "ngram_tree.js",
    "long_contexts.js",
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
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    with phase("choosing the precision of the weights"):
        shipped = choose_rounding(run.checkpoint, run.val)
    environment = Environment(
        loader=PackageLoader("gpt.export", "page"), autoescape=True, undefined=StrictUndefined
    )
    page = environment.get_template("page.html").render(
        header=page_header(run.folder.resolve().name, run.checkpoint, shipped),
        data={"weights": _packed(_weights_bytes(shipped))},
        worker=Markup(worker_source()),
    )
    return page.encode()


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
        "arrays": [
            {"name": name, "dtype": array.dtype.name, "shape": array.shape}
            for name, array in shipped.arrays.items()
        ],
        "counts": None,
    }


def _weights_bytes(shipped: ShippedWeights) -> bytes:
    """Return the bytes of all arrays, little-endian, each padded to a multiple of ALIGNMENT."""
    parts = []
    for array in shipped.arrays.values():
        content = array.astype(array.dtype.newbyteorder("<")).tobytes()
        parts += [content, bytes(-len(content) % ALIGNMENT)]
    return b"".join(parts)


def _packed(content: bytes) -> str:
    """Compress `content` by raw deflate, and encode it in base64."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(compressor.compress(content) + compressor.flush()).decode()
