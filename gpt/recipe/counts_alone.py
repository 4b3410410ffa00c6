"""Measure how well n-gram counts predict a text without a network.

From this loss and the network's loss, law.py predicts the val loss of a run with counts.

Shapes use n ids of a sample, E experts (predictors by n-gram counts), F inputs of the gate (which
computes the weights of the experts), and V distinct ids.
"""

import numpy as np
import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.counts.experts import Experts
from gpt.counts.kneser_ney import Floats
from gpt.counts.mixture import gate_inputs
from gpt.counts.window import Characters
from gpt.device import computing_with
from gpt.evaluation.loss import map_windows, unknown_cost
from gpt.model.windows import AdaptiveGate
from gpt.text.batches import scored_windows
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids
from gpt.training.gate_fit import BATCH, fit_gate

SAMPLED_IDS = 14_000  # largest number of val ids to predict
MIN_SAMPLED_FRACTION = 1 / 8  # smallest fraction of the ids of a window to predict
MAX_NUMBERS = 2**24  # largest number of log-probabilities of a sample: bounds the time
GATE_STEPS, SEED = 50, 0  # steps to fit the gate, and its seed
COUNTED_IDS_PER_S = 2_000_000  # approximate speed of counting
MIN_COUNTED_IDS = 1_000_000  # number of ids of the train split that are counted in any case
COUNTED_POWER = 0.03  # the loss is in proportion to this power of 1 / (number of counted ids)


def counts_loss(corpus: Corpus, val: Ids, config: Config, seconds: float) -> float:
    """Return the approximate val loss of n-gram counts alone, in nats per id.

    The counts predict a sample of `val`. A gate is fitted to one half of the sample and scored on
    the other half, and vice versa. The gates are then discarded: a run fits its own gate without
    val, and no setting depends on this loss.

    Args:
        corpus: the text.
        val: the ids of the val split.
        config: the settings of the counts and the number of threads.
        seconds: the time for counting. If it is too short for the whole train split, only the end
            of the split is counted, and the loss is extrapolated to the whole split.
    """
    V, model = len(corpus.vocabulary), config.model
    characters = Characters.of(corpus.vocabulary.names)
    counted = corpus.train[-max(MIN_COUNTED_IDS, int(COUNTED_IDS_PER_S * seconds)) :]
    experts = Experts.of(counted, V, model.counts, model.window_counts, characters)
    with computing_with(config.threads):
        predictions, inputs, targets = _sample(experts, val, model.T)

        def score(half: int) -> float:
            """Fit a gate to every second id from `half` on; return the other ids' summed loss."""
            fitted, scored = slice(half, None, 2), slice(1 - half, None, 2)
            epochs = -(-GATE_STEPS // -(-len(targets[fitted]) // BATCH))
            gate = fit_gate(predictions[fitted], inputs[fitted], targets[fitted], SEED, epochs)
            log_p, following = predictions[scored].numpy(), targets[scored].numpy()
            features = inputs[scored, : experts.features]
            # The gate adapts to the whole sample. Windows are longer, but each begins anew.
            adaptive = AdaptiveGate(gate)
            mixed, _ = adaptive.mix(log_p[:, :-1], features, log_p[:, -1], following)
            return -float(mixed[np.arange(len(mixed)), following].sum())

        total = sum(map_windows(score, iter((0, 1)), torch.device("cpu")))
    loss = (total + unknown_cost(targets, corpus.vocabulary)) / len(targets)
    return float(loss * (len(counted) / len(corpus.train)) ** COUNTED_POWER)


def _sample(experts: Experts, ids: Ids, T: int) -> tuple[Tensor, Floats, Tensor]:
    """Cut windows of `T` ids from `ids`, and predict evenly spread blocks of each window.

    Returns:
        For n predicted ids: log-probabilities (n, E + 1, V) by the E `experts` and by a uniform
        distribution; the inputs of the gate (n, F); the target ids (n,).
    """
    V = experts.counts.V
    n = max(2, min(SAMPLED_IDS, MAX_NUMBERS // (experts.size * V)))
    fraction = min(1.0, max(MIN_SAMPLED_FRACTION, experts.block_size / T))  # at least one block
    batches = scored_windows(ids, T, round(n / fraction))
    windows = [window for x, y in batches for window in zip(x, y, strict=True)]  # (T,) each
    every = -(-sum(len(y) for _, y in windows) // n)

    def predict(window: tuple[Tensor, Tensor]) -> list[tuple[Floats, Floats]]:
        return [*experts.blocks(window[0].numpy(), every=every)]

    predicted = map_windows(predict, iter(windows), torch.device("cpu"))
    log_p, features = zip(*(block for blocks in predicted for block in blocks), strict=True)
    by_experts = np.concatenate(log_p)
    network = np.full((len(by_experts), V), -np.log(V), np.float32)
    inputs = gate_inputs(by_experts, np.concatenate(features), network)
    predictions = np.concatenate([by_experts, network[:, None]], 1)
    targets = [part for _, y in windows for part in y.split(experts.block_size)[::every]]
    return torch.from_numpy(predictions), inputs, torch.cat(targets)
