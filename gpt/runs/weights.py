"""Convert between a checkpoint's arrays and a model. Only this file of runs/ imports torch."""

import numpy as np
import torch

from gpt.config.schema import ModelConfig
from gpt.device import SkipInitialization
from gpt.model.ensemble import LanguageModel, make_model
from gpt.model.shapes import parameter_shapes
from gpt.runs.format import CheckpointData, Tensors
from gpt.text.vocabulary import Vocabulary

OLD_MEAN = -1  # index of the last row, which is the mean of all old rows


def load_model(data: CheckpointData, device: torch.device) -> LanguageModel:
    """Return the model of a checkpoint on `device`, in evaluation mode."""
    with torch.device("meta"), SkipInitialization():
        model = make_model(data.config.model, len(data.vocabulary))
    tensors = {name: torch.from_numpy(array) for name, array in data.weights.items()}
    model.load_state_dict(tensors, assign=True)
    return model.to(device).eval()


def load_weights(model: LanguageModel, data: CheckpointData) -> None:
    """Copy the weights of a checkpoint into a model of the same shape."""
    model.load_state_dict({name: torch.from_numpy(a) for name, a in data.weights.items()})


def weights_of(model: LanguageModel) -> Tensors:
    """Return the weights of `model` by name, as arrays; on a CPU, they share its memory."""
    return {name: tensor.numpy(force=True) for name, tensor in model.state_dict().items()}


def adapted_weights(data: CheckpointData, config: ModelConfig, vocabulary: Vocabulary) -> Tensors:
    """Return the weights of the checkpoint `data`, resized for `vocabulary` and `config.T`.

    Embeddings and the head get one row for each id, (V, C). The row of a new character is the mean
    of all old rows, so its logit is the mean of the old characters' logits. Position embeddings
    (T, C) are cut to the first `config.T` rows.
    """
    old_rows = {name: row for row, name in enumerate(data.vocabulary.names)}
    rows = [old_rows.get(name, OLD_MEAN) for name in vocabulary.names]
    shapes = parameter_shapes(config, len(vocabulary))
    one_more = parameter_shapes(config, len(vocabulary) + 1)
    weights = Tensors()
    for name, array in data.weights.items():
        if one_more[name] == shapes[name]:  # the shape does not depend on V
            weights[name] = array[: shapes[name][0]]
        else:
            mean = array.mean(0, dtype=np.float64, keepdims=True).astype(np.float32)
            weights[name] = np.concatenate([array, mean])[rows]  # (old V + 1, C) -> (V, C)
    return weights
