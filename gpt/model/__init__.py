"""The model: ids in, logits out."""
