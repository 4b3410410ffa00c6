"""Predict windows longer than the network's context; mix in the predictions of n-gram counts.

B: windows, T: ids of a window, V: number of distinct ids.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt.counts.kneser_ney import Floats
from gpt.counts.mixture import Mixture
from gpt.counts.switch import Switch
from gpt.model.ensemble import LanguageModel


def mixed(mixture: Mixture, ids: Tensor, logits: Tensor) -> Tensor:
    """Mix a network's predictions with those of n-gram counts, as log-probabilities (B, n, V).

    The mixture is averaged with its parts, by how well each predicted the window so far: `Switch`.

    Args:
        mixture: counts of the train split, and a small network that weights counts and network.
        ids: (B, T) windows. The n-grams of each window are counted, too.
        logits: (B, n, V), the network's after the last n ids of each window, of any precision and
            on any device. The result is in float32, on the same device.
    """
    network = logits.float().log_softmax(-1).cpu().numpy()
    mix = partial(_mixed_window, mixture)
    if logits.device.type == "cpu":  # the caller has a thread for each window
        windows = list(map(mix, ids.numpy(), network))
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            windows = list(pool.map(mix, ids.cpu().numpy(), network))
    return torch.from_numpy(np.stack(windows)).to(logits.device)


def _mixed_window(mixture: Mixture, ids: NDArray[np.int64], network: Floats) -> Floats:
    """Mix the predictions `network` (n, V) after the last n ids of a window; see `mixed`."""
    blocks, switch, done = list[Floats](), Switch(), 0
    start = len(ids) - len(network)
    following = np.append(ids[start + 1 :], 0)
    for experts, features in mixture.experts.blocks(ids, start):
        rows = slice(done, done + len(features))
        of_mixture = mixture.mix(experts, features, network[rows])
        predictors = [of_mixture[:, None], experts, network[rows, None]]
        blocks.append(switch.average(np.concatenate(predictors, 1), following[rows]))
        done = rows.stop
    return np.concatenate(blocks)


def segmented(model: LanguageModel, ids: Tensor) -> Tensor:
    """Return the logits (B, T, V) of windows `ids` (B, T), which may exceed the model's context.

    Windows are divided into consecutive segments as long as the context. Each segment is predicted
    without the others.
    """
    context, T = model.config.T, ids.shape[1]
    whole = T // context * context
    if context >= T:
        logits: Tensor = model(ids)
        return logits
    logits = model(ids[:, :whole].reshape(-1, context)).view(len(ids), whole, -1)
    return torch.cat([logits, model(ids[:, whole:])], 1) if whole < T else logits
