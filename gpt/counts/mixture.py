"""Mix the predictions of n-gram counts with those of the network (setting `model.counts`).

    log p(id) = sum over experts e of  weight_e * log p_e(id)  +  weight_net * log p_net(id) - log Z

An expert is a predictor by n-gram counts, such as the counts after the last 5 ids. The weights
depend on the position: a small network, the gate, computes them from how often each context was
counted and from how certain the network is. Weighted sums of log-probabilities are the logistic
mixing of the PAQ compressors, or a product of experts (Hinton 2002).

M: positions, E: experts, F: features, V: number of distinct ids.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.config.schema import ModelConfig
from gpt.counts.experts import Experts, long_orders
from gpt.counts.kneser_ney import Floats
from gpt.counts.long_contexts import LongContexts
from gpt.counts.ngram_counts import NgramCounts, longest_context
from gpt.counts.window import Characters

HIDDEN = 32  # units of the gate's hidden layer
MAX_GATE_NUMBER = 1e6  # largest number of a gate in a file; larger ones could overflow
MIN_SCALE = 1e-4  # smallest standard deviation of an input of a gate in a file
MIN_EXPERTS_WEIGHT = 0.05  # smallest divisor in `without_network`; limits the factor


@dataclass(frozen=True)
class Gate:
    """MLP with one hidden layer that computes the weight of each predictor.

    It maps F + E + 1 inputs (see `gate_inputs`) to E + 1 weights: one for each of E experts, which
    predict by n-gram counts, and one for the network. F is the number of features of the counts.

    Attributes:
        mean: (F + E + 1,) mean of each input on the text that the gate was fitted on.
        scale: (F + E + 1,) standard deviation of each input on that text.
        hidden_weight: (F + E + 1, HIDDEN) matrix of the hidden layer.
        hidden_bias: (HIDDEN,) bias of the hidden layer.
        weight: (HIDDEN, E + 1) matrix of the output layer, with the network in the last column.
        bias: (E + 1,) bias of the output layer.
    """

    mean: Floats
    scale: Floats
    hidden_weight: Floats
    hidden_bias: Floats
    weight: Floats
    bias: Floats

    def weights(self, inputs: Floats) -> Floats:
        """Return the weights (M, E + 1) of E experts and, last, the network, at M positions.

        Experts are predictors by n-gram counts. `inputs` (M, F + E + 1) are from `gate_inputs`.
        """
        weights: Floats = self.hidden(inputs) @ self.weight
        return weights + self.bias

    def hidden(self, inputs: Floats) -> Floats:
        """Return the activations (M, HIDDEN) of the hidden layer for `inputs` (M, F + E + 1)."""
        activations: Floats = np.tanh(
            (inputs - self.mean) / self.scale @ self.hidden_weight + self.hidden_bias
        )
        return activations


@dataclass(frozen=True)
class Mixture:
    """N-gram counts, and an MLP (`gate`) that computes weights for them and for the network."""

    experts: Experts
    gate: Gate
    sampling_gate: Gate  # weights the network and `experts.of_train`
    T: int  # number of ids in a window; earlier ids are not counted

    def mix(self, experts: Floats, features: Floats, network: Floats) -> Floats:
        """Mix the predictions of the experts, which use n-gram counts, and the network.

        Args:
            experts: (M, E, V) log-probabilities of V ids by E experts, at M positions.
            features: (M, F) how often contexts were counted, from `Experts.of_window`.
            network: (M, V) log-probabilities of the network.

        Returns:
            Normalised log-probabilities (M, V).
        """
        weights = self.gate.weights(gate_inputs(experts, features, network))
        return weighted(weights, experts, network)

    def for_sampling(self) -> "Mixture":
        """Return a mixture that uses only the n-gram counts of the train split.

        Counts of the window would make each repetition in a sample likelier, so samples would end
        in loops. Counts of long contexts would make samples copy passages of the train split.
        """
        return Mixture(self.experts.of_train, self.sampling_gate, self.sampling_gate, self.T)

    @property
    def gates(self) -> tuple[Gate, Gate]:
        """Both MLPs that weight predictors: `gate` and `sampling_gate`."""
        return self.gate, self.sampling_gate

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return all arrays to store, by name."""
        counts = self.experts.counts
        gates = {"gate": self.gate, "sampling_gate": self.sampling_gate}
        tensors: dict[str, NDArray[Any]] = {
            f"{gate}.{name}": array
            for gate, arrays in gates.items()
            for name, array in asdict(arrays).items()
        }
        for n in range(counts.order + 1):
            tensors |= {f"keys.{n}": counts.keys[n], f"counts.{n}": counts.counts[n]}
        if (contexts := self.experts.long_contexts) is not None:
            tensors |= {"reversed_ids": contexts.reversed_ids, "places": contexts.places}
        return tensors


def mixture_from(
    tensors: Mapping[str, NDArray[Any]], characters: Characters, config: ModelConfig
) -> Mixture:
    """Build a mixture from the stored arrays of a model, after checking them.

    Args:
        tensors: the arrays of `Mixture.tensors`, read from a file.
        characters: which of the V ids form words and lines.
        config: the settings of the model.

    Raises:
        ValueError: an array has a wrong type, shape or value for a model with these settings.
        KeyError: an array is missing.
    """
    V = len(characters.in_word)
    order = min(config.counts, longest_context(V))
    keys = [tensors[f"keys.{n}"] for n in range(order + 1)]
    counts = [tensors[f"counts.{n}"] for n in range(order + 1)]
    for n, (each_keys, each_counts) in enumerate(zip(keys, counts, strict=True)):
        is_typed = each_keys.dtype == np.int64 and each_counts.dtype == np.int32
        if not is_typed or each_keys.ndim != 1 or each_keys.shape != each_counts.shape:
            raise ValueError(f"keys.{n}: expected as many int64 keys as int32 counts, in one row")
        in_range = not len(each_keys) or (each_keys[0] >= 0 and each_keys[-1] < V ** (n + 1))
        if not in_range or (each_keys[1:] <= each_keys[:-1]).any() or (each_counts < 1).any():
            raise ValueError(f"keys.{n}: expected ascending n-grams and counts of at least 1")
    ngrams, contexts = NgramCounts(V, keys, counts), _long_contexts(tensors, order, V)
    experts = Experts(ngrams, contexts, config.window_counts, characters)
    gate = _gate(tensors, "gate", experts)
    return Mixture(experts, gate, _gate(tensors, "sampling_gate", experts.of_train), config.T)


def _gate(tensors: Mapping[str, NDArray[Any]], name: str, experts: Experts) -> Gate:
    """Build the gate of `experts` from the arrays in `tensors` with the prefix `name`.

    Raises:
        ValueError: an array in `tensors` has a wrong type, shape or value.
        KeyError: an array is missing.
    """
    E = experts.size
    inputs = experts.features + E + 1
    shapes = {
        "mean": (inputs,),
        "scale": (inputs,),
        "hidden_weight": (inputs, HIDDEN),
        "hidden_bias": (HIDDEN,),
        "weight": (HIDDEN, E + 1),
        "bias": (E + 1,),
    }
    arrays = {part: tensors[f"{name}.{part}"] for part in shapes}
    for part, shape in shapes.items():
        array = arrays[part]
        is_float = array.shape == shape and array.dtype == np.float32
        if not is_float or not (np.abs(array) <= MAX_GATE_NUMBER).all():  # NaN is refused, too
            raise ValueError(f"{name}.{part}: expected float32 numbers up to 1e6 of shape {shape}")
    if (arrays["scale"] < MIN_SCALE).any():
        raise ValueError(f"{name}.scale: expected at least {MIN_SCALE}")
    return Gate(**arrays)


def _long_contexts(tensors: Mapping[str, NDArray[Any]], order: int, V: int) -> LongContexts | None:
    """Build the index of long contexts from `tensors`; None if `long_orders` returns no lengths.

    Raises:
        ValueError: an array in `tensors` has a wrong type, shape or value.
        KeyError: an array is missing.
    """
    if not (orders := long_orders(order, V)):
        return None
    ids, places = tensors["reversed_ids"], tensors["places"]
    is_typed = ids.dtype in (np.uint8, np.uint16) and places.dtype == np.int32
    if not is_typed or ids.ndim != 1 or places.shape != (len(ids) - 1,) or len(ids) < 2:
        raise ValueError("places: expected one int32 place for each id but the last")
    if ids.max() >= V or places.min() < 1 or places.max() >= len(ids):
        raise ValueError(
            f"places, reversed_ids: expected places from 1 to {len(ids) - 1}, and ids below {V}"
        )
    return LongContexts(ids, places, orders, V)


def weighted(weights: Floats, experts: Floats, network: Floats) -> Floats:
    """Return the normalised weighted sum (M, V) of log-probabilities.

    Args:
        weights: (M, E + 1) weights of E experts (predictors by n-gram counts) and, in the last
            column, of the network, at M positions.
        experts: (M, E, V) log-probabilities of V ids by the experts.
        network: (M, V) log-probabilities of the network.
    """
    logits = np.matmul(weights[:, None, :-1], experts)[:, 0] + weights[:, -1:] * network
    logits -= np.maximum.reduce(logits, -1, keepdims=True)
    logits -= np.log(np.add.reduce(np.exp(logits), -1, keepdims=True))
    mixed: Floats = logits
    return mixed


def without_network(weights: Floats) -> Floats:
    """Return `weights` with 0 for the network, and the others scaled to keep the sum of each row.

    `weights` (M, E + 1) are the weights of E experts (predictors by n-gram counts) and, last, of
    the network. Without scaling, the predictions would be flatter. The scale is limited: if the
    experts' weights sum to less than `MIN_EXPERTS_WEIGHT`, divide by this instead of their sum.
    """
    experts = weights[:, :-1].sum(-1, keepdims=True)
    factor = weights.sum(-1, keepdims=True) / np.maximum(experts, MIN_EXPERTS_WEIGHT)
    scaled: Floats = weights * factor
    scaled[:, -1] = 0
    return scaled


def gate_inputs(experts: Floats, features: Floats, network: Floats) -> Floats:
    """Return the inputs (M, F + E + 1) of a `Gate` at M positions.

    The inputs are the F features, the network's largest log-probability, and each expert's
    log-probability of the network's most likely id.

    Args:
        experts: (M, E, V) log-probabilities of V ids by E experts (predictors by n-gram counts).
        features: (M, F) features of the counts, from `Experts.of_window`.
        network: (M, V) log-probabilities of the network.
    """
    rows, predicted = np.arange(len(network)), network.argmax(-1)
    certainty, agreement = network[rows, predicted], experts[rows, :, predicted]
    return np.concatenate([features, certainty[:, None], agreement], -1)
