"""Show and record a run: the progress bar, metrics.jsonl, TensorBoard."""
