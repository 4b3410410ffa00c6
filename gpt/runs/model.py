"""Between a checkpoint's arrays and a model: the one module of runs/ that imports torch."""

import torch

from gpt.model.ensemble import LanguageModel, make_model
from gpt.runs.checkpoint import CheckpointData, Tensors


def load_model(data: CheckpointData, device: torch.device) -> LanguageModel:
    """The model of a checkpoint on `device`, in evaluation mode."""
    with torch.device("meta"):  # draw no weights only to replace them
        model = make_model(data.config.model, len(data.vocabulary))
    weights = {name: torch.from_numpy(array) for name, array in data.weights.items()}
    model.load_state_dict(weights, assign=True)
    return model.to(device).eval()


def load_weights(model: LanguageModel, data: CheckpointData) -> None:
    """Copy a checkpoint's weights into a model of the same shape: no second model is made."""
    model.load_state_dict({name: torch.from_numpy(a) for name, a in data.weights.items()})


def weights_of(model: LanguageModel) -> Tensors:
    """The weights of a model by parameter name, as a checkpoint holds them.

    On a CPU they share the model's memory.
    """
    return {name: tensor.numpy(force=True) for name, tensor in model.state_dict().items()}
