"""Convert between a checkpoint's arrays and a model. Only this file of runs/ imports torch."""

import torch

from gpt.device import SkipInitialization
from gpt.model.ensemble import LanguageModel, make_model
from gpt.runs.format import CheckpointData, Tensors


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
