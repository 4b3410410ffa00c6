"""A model in, characters out: decoding (pure functions on logits) -> generator."""
