"""Measure how well n-gram counts predict a text without a network.

law.py predicts the val loss of a run with counts from this loss and that of the network alone.

n: ids of the sample, E: experts (predictors by n-gram counts), F: features of the counts, V: number
of distinct ids.
"""

import numpy as np
import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.counts.experts import Experts
from gpt.counts.kneser_ney import Floats
from gpt.counts.mixture import gate_inputs, weighted
from gpt.counts.word_and_line import Characters
from gpt.device import computing_with
from gpt.evaluation.loss import map_windows, unknown_cost
from gpt.text.batches import scored_windows
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids
from gpt.training.gate_fit import BATCH, fit_gate

SAMPLED_IDS = 14_000  # largest number of val ids to predict
MIN_SAMPLED_FRACTION = 1 / 8  # smallest fraction of the ids of a window to predict
MAX_NUMBERS = 2**24  # log-probabilities that are kept in memory: bounds the time, too
GATE_STEPS = 50  # steps to fit the gate
COUNTED_IDS_PER_S = 2_000_000  # approximate speed of counting
MIN_COUNTED_IDS = 1_000_000  # train split that is counted in any case
COUNTED_POWER = 0.03  # the loss is in proportion to this power of 1 / (number of counted ids)


def counts_loss(corpus: Corpus, val: Ids, config: Config, seconds: float) -> float:
    """Return the approximate val loss of n-gram counts alone, in nats per id.

    The counts predict a sample of `val`. A gate that weights the counts is fitted to one half of
    the sample and scored on the other, both ways. It is not kept: a run fits its gate without val.

    Args:
        corpus: the text.
        val: the ids of the val split.
        config: the settings of the counts and the number of threads.
        seconds: the time for counting. If the train split is too long for it, the end is counted,
            and the loss is reduced by what more counts are usually worth.
    """
    V, model = len(corpus.vocabulary), config.model
    characters = Characters.of(corpus.vocabulary.names)
    counted = corpus.train[-max(MIN_COUNTED_IDS, int(COUNTED_IDS_PER_S * seconds)) :]
    experts = Experts.of(counted, V, model.counts, model.window_counts, characters)
    n = min(SAMPLED_IDS, MAX_NUMBERS // (experts.size * V))
    batches = scored_windows(val, model.T, round(n / MIN_SAMPLED_FRACTION))
    windows = [window for x, y in batches for window in zip(x, y, strict=True)]  # (T,) each
    every = -(-sum(len(y) for _, y in windows) // n)
    parts = [part for _, y in windows for part in y.split(experts.block_size)[::every]]

    def predict(window: tuple[Tensor, Tensor]) -> list[tuple[Floats, Floats]]:
        return [*experts.blocks(window[0].numpy(), every=every)]

    with computing_with(config.threads):
        predicted = [*map_windows(predict, iter(windows), torch.device("cpu"))]
        log_p = np.concatenate([each for blocks in predicted for each, _ in blocks])
        features = np.concatenate([each for blocks in predicted for _, each in blocks])
        targets = torch.cat(parts)
        halves = [np.arange(i, len(targets), 2) for i in range(2)]
        pairs = iter([(halves[0], halves[1]), (halves[1], halves[0])])

        def score(pair: tuple[Ids, Ids]) -> float:
            fitted, scored = pair
            return _score(log_p, features, targets, fitted, scored)

        total = sum(map_windows(score, pairs, torch.device("cpu")))
    loss = (total + unknown_cost(targets, corpus.vocabulary)) / len(targets)
    return float(loss * (len(counted) / len(corpus.train)) ** COUNTED_POWER)


def _score(log_p: Floats, features: Floats, targets: Tensor, fitted: Ids, scored: Ids) -> float:
    """Fit a gate on the rows `fitted` of (n, E, V), (n, F) and (n,); sum the losses of `scored`."""
    V = log_p.shape[-1]
    network = np.full((len(log_p), V), -np.log(V), np.float32)  # one that knows nothing
    inputs = gate_inputs(log_p, features, network)
    all_predictions = torch.from_numpy(np.concatenate([log_p, network[:, None]], 1)[fitted])
    epochs = -(-GATE_STEPS // -(-len(fitted) // BATCH))
    gate = fit_gate(all_predictions, inputs[fitted], targets[fitted], 0, epochs)
    mixed = weighted(gate.weights(inputs[scored]), log_p[scored], network[scored])
    return -float(mixed[np.arange(len(scored)), targets[scored].numpy()].sum())
