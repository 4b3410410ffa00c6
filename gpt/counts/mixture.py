"""Mix the predictions of counts with the network's: what a model with `model.counts` predicts.

    log p(id) = sum over experts e of  weight_e * log p_e(id)  +  weight_net * log p_net(id) - log Z

The weights depend on the position: a small network, the gate, computes them from how often each
context was counted and from how certain the network is. Weighted sums of log-probabilities are the
logistic mixing of the PAQ compressors, or a product of experts (Hinton 2002).

M: positions, E: experts, F: features, V: number of distinct ids.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.config.schema import ModelConfig
from gpt.counts.experts import Experts
from gpt.counts.kneser_ney import Floats
from gpt.counts.ngram_counts import NgramCounts, longest_context

HIDDEN = 32  # units of the gate's hidden layer
MIN_EXPERTS_WEIGHT = 0.05  # smallest sum of the experts' weights that is scaled to the whole weight


@dataclass(frozen=True)
class Gate:
    """An MLP with one hidden layer, from features to the weights of the experts.

    The features are those of the counts, and the network's largest log-probability.

    Attributes:
        mean: (F + 1,) mean of each feature on the text that the gate was fitted on.
        scale: (F + 1,) their standard deviations.
        hidden_weight: (F + 1, HIDDEN).
        hidden_bias: (HIDDEN,).
        weight: (HIDDEN, E + 1), the network's weight last.
        bias: (E + 1,).
    """

    mean: Floats
    scale: Floats
    hidden_weight: Floats
    hidden_bias: Floats
    weight: Floats
    bias: Floats

    def weights(self, features: Floats) -> Floats:
        """Map features (..., F + 1) to the weights of the experts and the network (..., E + 1)."""
        inputs = (features - self.mean) / self.scale
        weights: Floats = np.tanh(inputs @ self.hidden_weight + self.hidden_bias) @ self.weight
        return weights + self.bias


@dataclass(frozen=True)
class Mixture:
    """Counts of the train split and of the window, and the gate that mixes them in."""

    experts: Experts
    gate: Gate
    T: int  # ids of a window, beyond which nothing is counted

    def mix(self, experts: Floats, features: Floats, network: Floats) -> Floats:
        """Mix the predictions of the experts and the network.

        Args:
            experts: (M, E, V) log-probabilities by counts.
            features: (M, F).
            network: (M, V) log-probabilities of the network.

        Returns:
            Log-probabilities (M, V), whose exponentials sum to 1.
        """
        return weighted(self.weights(features, network), experts, network)

    def weights(self, features: Floats, network: Floats) -> Floats:
        """Return the weights of the experts and the network, (M, E + 1); see `mix`."""
        return self.gate.weights(with_certainty(features, network))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, to be stored."""
        counts = self.experts.counts
        tensors: dict[str, NDArray[Any]] = {
            f"gate.{name}": array for name, array in asdict(self.gate).items()
        }
        for n in range(counts.order + 1):
            tensors |= {f"keys.{n}": counts.keys[n], f"counts.{n}": counts.counts[n]}
        return tensors


def mixture_from(tensors: Mapping[str, NDArray[Any]], V: int, config: ModelConfig) -> Mixture:
    """Return the mixture whose `tensors` these are.

    Args:
        tensors: the result of `Mixture.tensors`, from a file that need not be trusted.
        V: number of distinct ids.
        config: the settings of the model that they belong to.

    Raises:
        ValueError: they do not belong to such a model, or their values are impossible.
        KeyError: one is missing.
    """
    order = min(config.counts, longest_context(V))
    keys = [tensors[f"keys.{n}"] for n in range(order + 1)]
    counts = [tensors[f"counts.{n}"] for n in range(order + 1)]
    for n, (each_keys, each_counts) in enumerate(zip(keys, counts, strict=True)):
        is_typed = each_keys.dtype == np.int64 and each_counts.dtype == np.int32
        if not is_typed or each_keys.ndim != 1 or each_keys.shape != each_counts.shape:
            raise ValueError(f"keys.{n}: expected as many int64 keys as int32 counts, in one row")
        in_range = not len(each_keys) or (each_keys[0] >= 0 and each_keys[-1] < V ** (n + 1))
        if not in_range or (np.diff(each_keys) <= 0).any() or (each_counts < 1).any():
            raise ValueError(f"keys.{n}: expected ascending n-grams and counts of at least 1")
    experts = Experts(NgramCounts(V, keys, counts), config.window_counts)
    F, E = experts.features + 1, experts.size + 1
    shapes = {
        "mean": (F,),
        "scale": (F,),
        "hidden_weight": (F, HIDDEN),
        "hidden_bias": (HIDDEN,),
        "weight": (HIDDEN, E),
        "bias": (E,),
    }
    gate = {name: tensors[f"gate.{name}"] for name in shapes}
    for name, shape in shapes.items():
        array = gate[name]
        if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
            raise ValueError(f"gate.{name}: expected finite float32 numbers of shape {shape}")
    return Mixture(experts, Gate(**gate), config.T)


def weighted(weights: Floats, experts: Floats, network: Floats) -> Floats:
    """Return the normalised weighted sum of log-probabilities, (M, V).

    Args:
        weights: (M, E + 1) weights of the experts, and of the network in the last column.
        experts: (M, E, V) log-probabilities by counts.
        network: (M, V) log-probabilities of the network.
    """
    logits = np.matmul(weights[:, None, :-1], experts)[:, 0] + weights[:, -1:] * network
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    mixed: Floats = logits
    return mixed


def without_network(weights: Floats) -> Floats:
    """Set the network's weight to zero, and scale the experts' weights: (M, E + 1) -> (M, E + 1).

    The experts' weights are scaled to the sum of all weights. Without the scaling, predictions by
    counts alone would be too uncertain: a distribution to a power below 1 is flatter.
    """
    experts = weights[:, :-1].sum(-1, keepdims=True)
    factor = weights.sum(-1, keepdims=True) / np.maximum(experts, MIN_EXPERTS_WEIGHT)
    scaled: Floats = weights * factor
    scaled[:, -1] = 0
    return scaled


def with_certainty(features: Floats, network: Floats) -> Floats:
    """Append the network's largest log-probability to the features: (M, F + 1)."""
    return np.concatenate([features, network.max(-1, keepdims=True)], -1)
