"""A model in, characters out: prompt -> engine (logits) -> sampler (ids) -> generate (text)."""
