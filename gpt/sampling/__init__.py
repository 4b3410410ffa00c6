"""Generate text: prompt (ids) -> engine (logits) -> sampler (next ids) -> generate (text)."""
