"""Fit the gate, a small MLP that weights n-gram counts against the network, on unseen text.

A part in the middle of the train split is held out: the network does not train on it. The gate is
fitted on this part, with n-gram counts of the other ids. On text that the network has trained on,
the network predicts too well, so the gate would trust the network too much.

Why the middle? The end is often about the same things as val, so a network that does not train on
the end predicts val far worse. The start can differ from val, for example in a sorted list.

The gate is fitted again at every evaluation. The fit always starts from the same initial gate, so
the result depends only on the network.

n: ids of the held-out part, E: experts (predictors by n-gram counts), F: features of the counts,
V: number of distinct ids.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gpt.config.schema import Config
from gpt.counts.experts import Experts
from gpt.counts.kneser_ney import Floats
from gpt.counts.mixture import HIDDEN, Gate, Mixture, gate_inputs
from gpt.counts.window import Characters
from gpt.device import computing_with, generator
from gpt.errors import ConfigError
from gpt.model.ensemble import LanguageModel
from gpt.model.windows import segmented
from gpt.status import phase
from gpt.text.batches import scored_windows
from gpt.text.vocabulary import Ids, Vocabulary
from gpt.training.optimizer import AdamW

HELD_OUT_FRACTION = 0.05  # fraction of the train split that the gate is fitted on
MIN_HELD_OUT_IDS = 8192  # fewest ids to fit the gate on; a fifth of the train split if that is less
MAX_HELD_OUT_NUMBERS = 2**26  # log-probabilities of experts that are kept in memory
MAX_COPIED_IDS = 2**26  # longest train split to cut in the middle; cutting copies the other ids
BATCH = 1024  # ids of a step of the fit
EPOCHS = 12  # passes over the held-out ids to fit the gate of evaluations
SAMPLING_EPOCHS = 4  # passes over the held-out ids to fit the gate of sampling
GATE_LEARNING_RATE = 5e-3  # peak
WARMUP = 0.1  # fraction of the steps
NETWORK_WEIGHT = 0.4  # initial weight of the network's log-probabilities; the experts share 0.6


def held_out_ids(train_ids: int, context: int, experts: int, V: int) -> int:
    """Return how many of `train_ids` ids to hold out; at least `context` + 1 should remain."""
    wanted = max(int(HELD_OUT_FRACTION * train_ids), min(MIN_HELD_OUT_IDS, train_ids // 5))
    most = min(MAX_HELD_OUT_NUMBERS // (experts * V), train_ids - context - 1)
    return max(2, min(wanted, most))


class GateFit:
    """Fits the gate on ids that are held out from the train split."""

    def __init__(self, config: Config, train: Ids, vocabulary: Vocabulary) -> None:
        V, characters = len(vocabulary), Characters.of(vocabulary.names)
        self.seed, self.T, model = config.seed, config.model.T, config.model
        with phase("counting n-grams"):
            # counts of the whole train split, for the mixture with the trained model
            self.experts = Experts.of(train, V, model.counts, model.window_counts, characters)
            n = held_out_ids(len(train), model.attention_window, self.experts.size, V)
            start = (len(train) - n) // 2 if len(train) <= MAX_COPIED_IDS else 0
            self.held_out, rest = train[start : start + n], train[start + n :]
            self.network_ids = rest = np.concatenate([train[:start], rest]) if start else rest
            if len(rest) <= model.attention_window:
                raise ConfigError(
                    f"model.attention_window: expected fewer than the {len(rest):,} ids of "
                    f"the train split that the network trains on, got {model.attention_window}; "
                    f"use a smaller one, or more text"
                )
            experts = Experts.of(rest, V, model.counts, model.window_counts, characters)
            windows = scored_windows(self.held_out, model.T)
            self.windows = [pair for x, y in windows for pair in zip(x, y, strict=True)]  # (T,)
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                blocks = pool.map(lambda window: [*experts.blocks(window[0].numpy())], self.windows)
                predicted = [block for each in blocks for block in each]
        self.log_probabilities = torch.from_numpy(np.concatenate([each for each, _ in predicted]))
        self.features = np.concatenate([each for _, each in predicted])
        self._fitted: tuple[int, Mixture] | None = None  # a step, and the mixture fitted at it

    def fit(self, model: LanguageModel, step: int) -> Mixture:
        """Return n-gram counts with a gate that is fitted to `model` after `step` steps.

        A second call with the same `step` returns the result of the first call.
        """
        if self._fitted is not None and self._fitted[0] == step:
            return self._fitted[1]
        device = next(model.parameters()).device
        model.eval()
        with torch.inference_mode():
            logits = [segmented(model, x[None].to(device))[0] for x, _ in self.windows]
            network = torch.cat(logits).float().log_softmax(-1)  # (n, V)
        train = self.experts.of_train
        kept = [*range(train.features - 1), -1]  # the last feature is the position
        features, sizes = (self.features, self.features[:, kept]), (self.experts.size, train.size)
        with ThreadPoolExecutor(2) as pool:
            gate, sampling_gate = pool.map(
                self._fit, 2 * [network], sizes, features, (EPOCHS, SAMPLING_EPOCHS)
            )
        mixture = Mixture(self.experts, gate, sampling_gate, self.T)
        self._fitted = step, mixture
        return mixture

    def _fit(self, network_log_p: Tensor, size: int, features: Floats, epochs: int) -> Gate:
        """Fit a gate for the first `size` experts and the network; `network_log_p` is (n, V)."""
        log_p = self.log_probabilities[:, :size]
        inputs = gate_inputs(log_p.numpy(), features, network_log_p.cpu().numpy())
        # On a CPU, the operations are too small to share among threads.
        with computing_with(1):
            predictions = torch.cat([log_p.to(network_log_p.device), network_log_p[:, None]], 1)
            targets = torch.cat([y for _, y in self.windows])
            return fit_gate(predictions, inputs, targets, self.seed, epochs)


def fit_gate(
    log_probabilities: Tensor, inputs: Floats, targets: Tensor, seed: int, epochs: int
) -> Gate:
    """Fit a gate that minimises the loss of the mixed predictions on `targets`.

    Args:
        log_probabilities: (n, E + 1, V): E experts, then the network. The fit uses their device.
        inputs: the result of `gate_inputs`, (n, F + E + 1).
        targets: the ids to predict, (n,).
        seed: seed of the initial hidden weights and of the batches.
        epochs: passes over the targets.
    """
    n, size, _ = log_probabilities.shape
    width = inputs.shape[1]
    mean, scale = inputs.mean(0), inputs.std(0) + np.float32(1e-3)
    device = log_probabilities.device
    scaled, targets = torch.from_numpy((inputs - mean) / scale).to(device), targets.to(device)
    source = generator(seed, "gate", 0)
    bias = torch.full((size,), (1 - NETWORK_WEIGHT) / (size - 1))
    bias[-1] = NETWORK_WEIGHT
    initial = [
        torch.randn(width, HIDDEN, generator=source) / width**0.5,
        torch.zeros(HIDDEN),
        torch.zeros(HIDDEN, size),
        bias,
    ]
    parameters = [each.to(device).requires_grad_() for each in initial]
    optimizer = AdamW(parameters, GATE_LEARNING_RATE, (0.9, 0.99), 0.0)
    batches = -(-n // BATCH)
    steps = epochs * batches
    for step in range(steps):
        if step % batches == 0:
            parts = torch.split(torch.randperm(n, generator=source).to(device), BATCH)
        rows = parts[step % batches]
        hidden = torch.tanh(scaled[rows] @ parameters[0] + parameters[1])
        weights = hidden @ parameters[2] + parameters[3]  # (rows, E + 1)
        logits = torch.bmm(weights[:, None], log_probabilities[rows])[:, 0]
        for each in parameters:
            each.grad = None
        cross_entropy(logits, targets[rows]).backward()  # type: ignore[no-untyped-call]
        warmup, decay = (step + 1) / (WARMUP * steps), (steps - step) / steps
        optimizer.step(min(warmup, decay))
    return Gate(mean, scale, *(each.detach().cpu().numpy() for each in parameters))
