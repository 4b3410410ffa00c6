"""Export a model as one HTML file that runs it in a browser, without a network connection.

The script of the page reads these elements:

    <script type="application/json" id="header">            JSON values: see `page_content`
    <script type="application/octet-stream" id="weights">   the arrays that `header.arrays` lists
    <script type="text/plain" id="worker">                  code that runs the model: see worker.js
"""

import base64
import zlib
from importlib.resources import files
from typing import Any

from numpy.typing import NDArray

from gpt.export.shipped_weights import MEASURED_IDS, choose_rounding
from gpt.inspection.html_page import render_page
from gpt.model.shapes import parameter_count
from gpt.runs.format import CheckpointData
from gpt.status import phase
from gpt.text.vocabulary import Ids

Arrays = dict[str, NDArray[Any]]

ALIGNMENT = 4  # bytes to which each array is padded
# the files of each script, in the order in which they are joined
PAGE_FILES = (
    "vocabulary.js",
    "client.js",
    "text.js",
    "likeliest.js",
    "bars.js",
    "inside_view.js",
    "page.js",
)
WORKER_FILES = (
    "vocabulary.js",
    "arrays.js",
    "random.js",
    "likeliest.js",
    "sampler.js",
    "kernel.js",
    "linear.js",
    "network.js",
    "model.js",
    "generate.js",
    "inside.js",
    "worker.js",
)


def html_page(title: str, checkpoint: CheckpointData, val: Ids | None) -> bytes:
    """Return a page that runs a model, as UTF-8.

    Args:
        title: the name of the run.
        checkpoint: the model.
        val: the ids of the val split, used to choose the precision of the weights; None if the
            text is not available.
    """
    header, weights = page_content(title, checkpoint, val)
    return render_page(
        "page",
        folder=files("gpt.export") / "page",
        scripts=PAGE_FILES,
        title=title,
        header=header,
        weights=weights,
        worker=worker_source(),
    )


def worker_source() -> str:
    """Return the JavaScript that the page's worker runs."""
    folder = files("gpt.export") / "page"
    return "".join((folder / name).read_text("utf-8") for name in WORKER_FILES)


def page_content(
    title: str, checkpoint: CheckpointData, val: Ids | None
) -> tuple[dict[str, Any], str]:
    """Return the values of `header`, and the arrays of `weights`, compressed, in base64.

    The arguments are those of `html_page`.
    """
    with phase("choosing the precision of the weights"):
        shipped = choose_rounding(checkpoint, val)
    config, vocabulary = checkpoint.config, checkpoint.vocabulary
    header: dict[str, Any] = {
        "title": title,
        "step": checkpoint.step,
        "val_loss": checkpoint.val_loss,  # nats per id; null if the run was not evaluated
        "text_sha256": checkpoint.text_sha256,
        "parameters": parameter_count(config.model, len(vocabulary)),
        "weights": {
            "kind": shipped.kind,
            "loss_rise": shipped.loss_rise,  # nats per id; null if there was no val text
            "measured_ids": max(MEASURED_IDS, config.model.T),  # at most
        },
        "vocabulary": {
            "characters": vocabulary.characters,  # in the order of their ids
            "unknown": vocabulary.unknown,  # characters that share the last id, or 0
            "bytes": vocabulary.is_bytes,  # ids are the 256 bytes of UTF-8
            "size": len(vocabulary),
        },
        # how to change a prompt before it is encoded
        "text": config.data.model_dump(include={"newlines", "normalize", "lowercase"}),
        "model": config.model.model_dump(),
        "sample": config.sample.model_dump(),
        "seed": config.seed,
        "arrays": [
            {"name": name, "dtype": array.dtype.name, "shape": array.shape}
            for name, array in shipped.arrays.items()
        ],
    }
    return header, _packed(shipped.arrays)


def _packed(arrays: Arrays) -> str:
    """Return the bytes of all arrays, compressed by raw deflate and encoded in base64.

    Each array is little-endian, and padded with zeros to a multiple of ALIGNMENT bytes.
    """
    compressor, parts = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS), []
    for array in arrays.values():
        content = array.astype(array.dtype.newbyteorder("<")).tobytes()
        parts += [compressor.compress(content + bytes(-len(content) % ALIGNMENT))]
    return base64.b64encode(b"".join([*parts, compressor.flush()])).decode()
