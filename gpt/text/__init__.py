"""Read texts and convert them to batches: sources -> vocabulary -> corpus -> batches."""
