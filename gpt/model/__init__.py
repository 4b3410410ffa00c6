"""Batches in, logits out: attention -> transformer."""
