"""Batches in, checkpoints out: optimizer, evaluation -> step -> loop, watched by the monitor."""
