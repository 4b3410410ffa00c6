"""What people watch: the bar, metrics.jsonl, TensorBoard."""
