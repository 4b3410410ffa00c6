"""Between a checkpoint's arrays and a model: the one module of runs/ that imports torch."""

import torch

from gpt.config.schema import ModelConfig
from gpt.device import SkipInitialization
from gpt.distributed import rank
from gpt.model.ensemble import LanguageModel, make_model, members_of
from gpt.runs.format import CheckpointData, Tensors
from gpt.sharding import array_of, fill, is_sharded


def load_model(data: CheckpointData, device: torch.device) -> LanguageModel:
    """The model of a checkpoint on `device`, in evaluation mode."""
    return _model_of(data.weights, data.config.model, len(data.vocabulary)).to(device).eval()


def _model_of(weights: Tensors, config: ModelConfig, vocabulary_size: int) -> LanguageModel:
    with torch.device("meta"), SkipInitialization():
        model = make_model(config, vocabulary_size)
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    model.load_state_dict(tensors, assign=True)
    return model


def load_weights(model: LanguageModel, data: CheckpointData) -> None:
    """Copy a checkpoint's weights into a model of the same shape: no second model is made."""
    if is_sharded(model):
        for name, tensor in model.state_dict().items():
            fill(tensor, data.weights[name])
    else:
        model.load_state_dict({name: torch.from_numpy(a) for name, a in data.weights.items()})


def weights_of(model: LanguageModel) -> Tensors:
    """The weights of a model by parameter name, as a checkpoint holds them.

    On a CPU they share the model's memory. Of a sharded model they are gathered, tensor by tensor:
    on rank 0 alone, and elsewhere the arrays are empty.
    """
    return {name: array_of(tensor) for name, tensor in model.state_dict().items()}


def for_main(model: LanguageModel) -> LanguageModel:
    """A model that rank 0 can compute with alone: of a sharded one, on the CPU, all its weights."""
    if not is_sharded(model):
        return model
    weights = weights_of(model)
    if rank() > 0:
        return model
    return _model_of(weights, model.config, members_of(model)[0].head.out_features).eval()
