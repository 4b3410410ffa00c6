"""Convert a text to batches: documents -> vocabulary -> corpus -> batches."""
