"""What shows and records a run: the progress bar, metrics.jsonl, TensorBoard."""
