"""AdamW and the learning rate of each step."""

import math

import torch

from gpt.config import TrainConfig
from gpt.model.transformer import GPT


def make_optimizer(model: GPT, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (arXiv:1711.05101); matrices decay, biases and LayerNorms do not."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True
    )


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of update `step`, counted from 0: a linear rise, then the fall of `config.decay`.

    The last step of the rise is at the peak, and so is the first of the fall, which would be at
    `min_learning_rate` one step after the last.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = min(1.0, (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps))
    left = 1 - done if config.decay == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.min_learning_rate + left * (config.learning_rate - config.min_learning_rate)
