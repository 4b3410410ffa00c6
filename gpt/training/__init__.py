"""Batches in, checkpoints out: the optimizer step, evaluations, and the training loop."""
