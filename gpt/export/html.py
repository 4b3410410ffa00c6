"""Export a model as one HTML file that runs it in a browser, without a network connection.

The script of the page reads these elements:

    <script type="application/json" id="header">            JSON values: see `page_content`
    <script type="application/octet-stream" id="weights">   the weights: see `_packed`
    <script type="text/plain" id="worker">                  code that runs the model: see worker.js
"""

from pathlib import Path
from typing import Any

import numpy as np

from gpt.errors import UsageError
from gpt.inspection.pages import contents_of, in_base64, render_page
from gpt.model.shapes import parameter_count
from gpt.runs.format import CheckpointData, Tensors

FOLDER = Path(__file__).with_name("page")
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
    "linear.js",
    "network.js",
    "model.js",
    "generate.js",
    "inside.js",
    "worker.js",
)


def html_page(title: str, checkpoint: CheckpointData) -> bytes:
    """Return a page, as UTF-8, that runs the model of `checkpoint`; `title` is the run's name."""
    header, weights = page_content(checkpoint)
    return render_page(
        "page",
        folder=FOLDER,
        scripts=PAGE_FILES,
        title=title,
        header=header,
        weights=weights,
        worker=contents_of([FOLDER / name for name in WORKER_FILES]),
    )


def page_content(checkpoint: CheckpointData) -> tuple[dict[str, Any], str]:
    """Return the contents of two elements of the page: `header` (JSON values) and `weights`."""
    config, vocabulary = checkpoint.config, checkpoint.vocabulary
    header: dict[str, Any] = {
        "step": checkpoint.step,
        "val_loss": checkpoint.val_loss,  # nats per id; null if the run was not evaluated
        "text_sha256": checkpoint.text_sha256,
        "parameters": parameter_count(config.model, len(vocabulary)),
        "vocabulary": {
            "characters": vocabulary.characters,  # in the order of their ids
            "bytes": vocabulary.is_bytes,  # whether ids are the bytes of UTF-8
            "size": len(vocabulary),
        },
        "model": config.model.model_dump(),
        "sample": config.sample.model_dump(),
        "arrays": [(name, weight.size) for name, weight in checkpoint.weights.items()],
    }
    return header, _packed(checkpoint.weights)


def _packed(weights: Tensors) -> str:
    """Return all weights as float16 numbers, little-endian, one after the other, in base64."""
    numbers = np.concatenate([weight.ravel() for weight in weights.values()])
    largest, limit = np.abs(numbers).max(), np.finfo(np.float16).max
    if largest > limit:
        raise UsageError(
            f"a weight of the model is {largest:,.0f}, but a page stores numbers of at "
            f"most {limit:,.0f} (float16); export another checkpoint"
        )
    return in_base64(numbers.astype(np.float16))
