"""Export a model as one HTML file that runs it in a browser, without a network connection.

The script of the page reads these elements:

    <script type="application/json" id="header">            JSON values: see `page_content`
    <script type="application/octet-stream" id="weights">   the arrays that `header.arrays` lists
    <script type="application/octet-stream" id="counts">    the arrays of `header.counts`, if any
    <script type="text/plain" id="worker">                  code that runs the model: see worker.js
"""

import base64
import logging
import zlib
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.counts.experts import Experts
from gpt.counts.mixture import Mixture
from gpt.counts.ngram_tree import levels_of
from gpt.export.shipped_weights import MEASURED_IDS, choose_rounding
from gpt.inspection.html_page import render_page
from gpt.model.shapes import parameter_count
from gpt.runs.format import CheckpointData
from gpt.status import phase
from gpt.text.vocabulary import Ids

log = logging.getLogger(__name__)

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
    "ngram_tree.js",
    "mixture.js",
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
    header, data = page_content(title, checkpoint, val)
    return render_page(
        "page",
        folder=files("gpt.export") / "page",
        scripts=PAGE_FILES,
        title=title,
        header=header,
        data=data,
        worker=worker_source(),
    )


def worker_source() -> str:
    """Return the JavaScript that the page's worker runs."""
    folder = files("gpt.export") / "page"
    return "".join((folder / name).read_text("utf-8") for name in WORKER_FILES)


def page_content(
    title: str, checkpoint: CheckpointData, val: Ids | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of `header`, and a dictionary of `weights` and `counts` in base64.

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
            "measured_ids": max(MEASURED_IDS, config.model.attention_window),  # at most
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
        "arrays": _entries(shipped.arrays),
        "counts": None,
    }
    data = {"weights": _packed(shipped.arrays)}
    if checkpoint.mixture is not None:
        header["counts"], arrays = _counts(checkpoint.mixture)
        data["counts"] = _packed(arrays)
        log.warning(
            "the page contains the training text or its n-grams, for the n-gram counts; share the "
            "page only where you may share that text, or train with --set model.counts=0"
        )
    return header, data


def _counts(mixture: Mixture) -> tuple[dict[str, Any], Arrays]:
    """Return `header.counts`, and a dictionary of the arrays of the gate and the n-gram counts."""
    sampling = mixture.for_sampling()
    arrays = asdict(sampling.gate) | _count_arrays(mixture.experts)
    values = {
        "T": sampling.T,  # ids of a window; n-grams outside it are not counted
        "N": sampling.experts.counts.order,  # length of the longest context, in ids
        "orders": sampling.experts.orders,
        "names": sampling.experts.names,
        "arrays": _entries(arrays),
    }
    return values, arrays


def _count_arrays(experts: Experts) -> Arrays:
    """Return arrays, by name, from which the page restores the n-gram counts of `experts`.

    If `experts` contains the whole train split, the only array is `text`, the ids of the split: the
    page counts their n-grams, since stored counts would be twenty times as large. Otherwise, the
    arrays are the levels of the tree of n-grams: `ids.1`, `counts.1`, `children.1`, `ids.2`, ...
    """
    counts = experts.counts
    if experts.long_contexts is not None:
        text = experts.long_contexts.reversed_ids[::-1]
        if counts.counts[-1].sum() == len(text) - counts.order:  # no n-gram lies before the text
            return {"text": text}
    return {
        f"{name}.{length}": array.astype(np.min_scalar_type(array.max(initial=0)))
        for length, level in enumerate(levels_of(counts), 1)
        for name, array in level._asdict().items()
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
