"""Predict windows longer than the network's context; combine the network with n-gram counts.

B: windows, K: predictors, M: positions, T: ids of a window, V: number of distinct ids.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt.counts.kneser_ney import Floats
from gpt.counts.mixture import Gate, Mixture, gate_inputs, weighted
from gpt.model.ensemble import LanguageModel

DECAY = 0.95  # factor on past losses for each further id; about the last 20 ids matter
ADVANTAGE = 4.0  # nats subtracted from the first predictor's loss, to prefer this predictor
ADAPTATION_RATE = 4e-5  # learning rate of `AdaptiveGate`
ADAPTED_IDS = 16  # ids after which the weights of `AdaptiveGate` change
MAX_GRADIENT = 300.0  # largest norm of a gradient of `AdaptiveGate`


def mixed(mixture: Mixture, ids: Tensor, logits: Tensor) -> Tensor:
    """Mix a network's predictions with those of n-gram counts; return log-probabilities (B, n, V).

    `AdaptiveGate` adapts the mixture to those of the last n ids that come before a prediction, and
    `Switch` then averages the predictions of the mixture, the network and each expert (a predictor
    by n-gram counts).

    Args:
        mixture: n-gram counts of the train split, and a gate: an MLP that weights the predictors.
        ids: (B, T) windows. Some experts count the n-grams of the window.
        logits: (B, n, V), the network's logits after the last n ids of each window, in any
            precision and on any device. The result is in float32, on the same device.
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
    """Do the work of `mixed` for one window `ids` (T,).

    `network` (n, V) has the network's log-probabilities after each of the last n ids.
    """
    blocks, gate, switch, done = list[Floats](), AdaptiveGate(mixture.gate), Switch(), 0
    start = len(ids) - len(network)
    following = np.append(ids[start + 1 :], 0)
    for experts, features in mixture.experts.blocks(ids, start):
        rows = slice(done, done + len(features))
        of_mixture, _ = gate.mix(experts, features, network[rows], following[rows])
        predictors = [of_mixture[:, None], experts, network[rows, None]]
        blocks.append(switch.average(np.concatenate(predictors, 1), following[rows]))
        done = rows.stop
    return np.concatenate(blocks)


class AdaptiveGate:
    """Gate whose output layer depends on the earlier ids of one window.

    After every `ADAPTED_IDS` ids, one step of gradient descent on their losses changes a copy of
    the layer. The next window begins with the layer of `gate` again. So, like attention, the
    weights depend on no ids but those before a prediction, in its window. Linear attention is
    equivalent to such fast weights (Schlag et al. 2021, arXiv:2102.11174). The PAQ compressors
    weight their predictors in this way (Mahoney 2005, "Adaptive weighing of context models").
    """

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.layer = np.vstack([gate.weight, gate.bias])  # (HIDDEN + 1, E + 1)
        self.gradient = np.zeros_like(self.layer)  # sum since the last step of gradient descent
        self.ids = 0  # number of ids predicted so far

    def mix(
        self, experts: Floats, features: Floats, network: Floats, following: NDArray[np.int64]
    ) -> tuple[Floats, Floats]:
        """Mix predictions as `Mixture.mix` does, at the next M positions of the window.

        Args:
            experts: (M, E, V) log-probabilities of V ids by E experts.
            features: (M, F) features of the counts, from `Experts.of_window`.
            network: (M, V) log-probabilities of the network.
            following: (M,) the ids that really follow. They change later predictions only.

        Returns:
            Normalised log-probabilities (M, V); weights (M, E + 1) of experts and, last, network.
        """
        hidden = self.gate.hidden(gate_inputs(experts, features, network))
        hidden = np.concatenate([hidden, np.ones((len(hidden), 1), np.float32)], 1)
        mixed, used = [], []
        ends = [*range(ADAPTED_IDS - self.ids % ADAPTED_IDS, len(hidden), ADAPTED_IDS), len(hidden)]
        for rows in map(slice, [0, *ends], ends):
            weights = hidden[rows] @ self.layer
            log_p = weighted(weights, experts[rows], network[rows])
            mixed.append(log_p)
            used.append(weights)
            errors = np.exp(log_p)  # (m, V): the gradient of the losses by the logits
            errors[np.arange(len(errors)), following[rows]] -= 1
            of_experts = np.matmul(experts[rows], errors[:, :, None])[:, :, 0]
            of_network = (network[rows] * errors).sum(1, keepdims=True)
            self.gradient += hidden[rows].T @ np.concatenate([of_experts, of_network], 1)
            self.ids += len(weights)
            if self.ids % ADAPTED_IDS == 0:
                norm = max(float(np.linalg.norm(self.gradient)), MAX_GRADIENT)
                self.layer -= np.float32(ADAPTATION_RATE * MAX_GRADIENT / norm) * self.gradient
                self.gradient[:] = 0
        return np.concatenate(mixed), np.concatenate(used)


class Switch:
    """Average of predictors, weighted by their losses on the last ids of a window.

    A mixture of network and n-gram counts is fitted to text like the train split. It can be far off
    on other text, such as tables after prose or a new script. There, this average soon predicts
    about as well as the best of its predictors. The weights are those of a Bayesian average in
    which older losses count less; compare Herbster and Warmuth 1998, "Tracking the best expert".
    """

    def __init__(self) -> None:
        self.losses: float | NDArray[np.float64] = 0.0  # (K,) decayed sums, in nats

    def average(self, log_p: Floats, following: NDArray[np.int64]) -> Floats:
        """Return the log (M, V) of the weighted mean of the probabilities of K predictors.

        `log_p` (M, K, V) has their log-probabilities at the next M positions. `ADVANTAGE` favours
        the first predictor. `following` (M,) has the ids that really follow these positions. Each
        of these ids changes the weights at later positions only.
        """
        M, K, _ = log_p.shape
        nats = -log_p[np.arange(M), :, following].astype(np.float64)  # (M, K)
        losses = np.empty((M, K))
        for i in range(M):
            losses[i] = self.losses
            self.losses = DECAY * self.losses + nats[i]
        losses[:, 0] -= ADVANTAGE
        weights = np.exp(losses.min(1, keepdims=True) - losses)
        weights /= weights.sum(1, keepdims=True)
        p = np.matmul(weights[:, None].astype(np.float32), np.exp(log_p))[:, 0]
        logs: Floats = np.log(np.maximum(p, np.finfo(np.float32).tiny))
        return logs


def segmented(model: LanguageModel, ids: Tensor) -> Tensor:
    """Return the logits (B, T, V) of windows `ids` (B, T), which may exceed the model's context.

    Each window is divided into consecutive segments as long as the context (the last may be
    shorter). Predictions in a segment do not depend on the other segments.
    """
    context, T = model.config.T, ids.shape[1]
    whole = T // context * context
    if context >= T:
        logits: Tensor = model(ids)
        return logits
    logits = model(ids[:, :whole].reshape(-1, context)).view(len(ids), whole, -1)
    return torch.cat([logits, model(ids[:, whole:])], 1) if whole < T else logits
