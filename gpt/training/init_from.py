"""Make the model that training starts with: new weights, or those of a run to fine-tune.

Fine-tuning adds the new characters of the text to the run's vocabulary. V is the resulting size.
"""

import logging
from dataclasses import replace

import numpy as np
import torch

from gpt.config.removed import COUNTS_NOTICE
from gpt.config.schema import Config, ModelConfig
from gpt.errors import counted
from gpt.model.ensemble import LanguageModel, make_model
from gpt.model.shapes import parameter_shapes
from gpt.runs.fine_tuning import check_same_model, warn_of_known_val
from gpt.runs.folder import find_run
from gpt.runs.format import CheckpointData, Tensors
from gpt.runs.read import read_checkpoint
from gpt.runs.weights import load_model
from gpt.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

OLD_MEAN = -1  # index of the last row, after the mean of all old rows is appended


def initial_model(
    config: Config, vocabulary: Vocabulary, device: torch.device
) -> tuple[LanguageModel, dict[str, str | int]]:
    """Return the model of step 0, and the provenance of its weights.

    The provenance of new weights is empty. For weights of the run `train.init_from`, it contains
    the path of that run, the step, and the SHA-256 of the weights.
    """
    if config.train.init_from is None:
        return make_model(config.model, len(vocabulary), config.seed).to(device), {}
    run = find_run(config.train.init_from)
    data = read_checkpoint(run)
    check_same_model(data, config)
    if data.had_counts:
        log.warning(COUNTS_NOTICE, run)
    added = counted(len(data.vocabulary.outside(vocabulary.characters)), "new character")
    log.info("fine-tuning %s, step %d: %s", run, data.step, added)
    warn_of_known_val(data.config, config)
    weights = adapted_weights(data, config.model, vocabulary)
    model = load_model(replace(data, config=config, vocabulary=vocabulary, weights=weights), device)
    return model, {
        "init_from": str(run),
        "init_from_step": data.step,
        "init_from_sha256": data.weights_sha256,
    }


def adapted_weights(data: CheckpointData, config: ModelConfig, vocabulary: Vocabulary) -> Tensors:
    """Return the weights of the checkpoint `data`, resized for `vocabulary` and `config.T`.

    Embeddings and the head get one row for each id, (V, C). The row of a new character is the mean
    of all old rows, so its logit is the mean of the old characters' logits. Position embeddings
    (T, C) are cut to the first `config.T` rows.
    """
    rows = _old_rows(data.vocabulary, vocabulary)
    shapes = parameter_shapes(config, len(vocabulary))
    one_more = parameter_shapes(config, len(vocabulary) + 1)
    weights = Tensors()
    for name, array in data.weights.items():
        if one_more[name] == shapes[name]:  # its shape does not depend on V
            weights[name] = array[: shapes[name][0]]
        else:
            mean = array.mean(0, dtype=np.float64, keepdims=True).astype(np.float32)
            weights[name] = np.concatenate([array, mean])[rows]  # from (old V + 1, C)
    return weights


def _old_rows(old: Vocabulary, new: Vocabulary) -> list[int]:
    """Return, for each id of `new`, its row in the embeddings of `old`, or OLD_MEAN if none."""
    if new.is_bytes:
        return list(range(len(new)))
    ids = {c: i for i, c in enumerate(old.characters)}
    return [ids.get(c, OLD_MEAN) for c in new.characters]
