"""Train a model: the optimizer step, evaluations, checkpoints, and the training loop."""
