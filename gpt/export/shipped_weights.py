"""Round a model's weights to 8 or 16 bits, so that an exported page is small."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.runs.format import CheckpointData, Tensors
from gpt.text.vocabulary import Ids

MAX_LOSS_RISE = 0.005  # largest rise of the val loss for which 8 bits are used, in nats per id
MEASURED_IDS = 10_000  # wanted number of val ids, in whole windows, on which to measure this rise


@dataclass(frozen=True)
class ShippedWeights:
    """Rounded weights of a model.

    Attributes:
        kind: `int8` or `float16`, the type of the matrices. Vectors, and matrices with numbers
            too large for float16, are float32.
        arrays: the arrays to store, by parameter name. With `int8`, each matrix also has an array
            `NAME.scale` with a float32 number for each row.
        loss_rise: how much the rounding raises the loss on val, in nats per id; None if
            it was not measured.
    """

    kind: str
    arrays: dict[str, NDArray[Any]]
    loss_rise: float | None = None

    def restored(self) -> Tensors:
        """Return the weights as the page restores them: float32, by parameter name."""
        weights = {}
        for name, array in self.arrays.items():
            if not name.endswith(".scale"):
                weights[name] = array.astype(np.float32)
                if array.dtype == np.int8:
                    weights[name] *= self.arrays[f"{name}.scale"][:, None]
        return weights


def rounded(weights: Tensors, kind: str) -> ShippedWeights:
    """Round the matrices among `weights` to `kind`: `int8`, with a scale per row, or `float16`."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, weight in weights.items():
        largest = np.abs(weight).max(-1, initial=0)
        if weight.ndim == 1 or largest.max() > np.finfo(np.float16).max:
            arrays[name] = weight
        elif kind == "float16":
            arrays[name] = weight.astype(np.float16)
        else:
            scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
            arrays[name] = np.rint(weight / scale[:, None]).astype(np.int8)
            arrays[f"{name}.scale"] = scale
    return ShippedWeights(kind, arrays)


def choose_rounding(checkpoint: CheckpointData, val: Ids | None) -> ShippedWeights:
    """Round the weights to 8 bits if that raises the val loss by less than MAX_LOSS_RISE.

    Otherwise, or without a val text, round to 16 bits.
    """
    if val is None or len(val) < 2:
        return rounded(checkpoint.weights, "float16")
    before = _loss(checkpoint, checkpoint.weights, val)
    for kind in ("int8", "float16"):
        shipped = rounded(checkpoint.weights, kind)
        rise = _loss(checkpoint, shipped.restored(), val) - before
        if rise < MAX_LOSS_RISE:
            break
    return replace(shipped, loss_rise=rise)


def _loss(checkpoint: CheckpointData, weights: Tensors, ids: Ids) -> float:
    """Return the loss of the model with these `weights`, in nats per id, on part of `ids`."""
    import torch

    from gpt.device import default_modes
    from gpt.evaluation.loss import evaluate
    from gpt.runs.weights import load_model

    model = load_model(replace(checkpoint, weights=weights), torch.device("cpu"))
    with default_modes():
        return evaluate(model, ids, checkpoint.vocabulary, characters=MEASURED_IDS)
