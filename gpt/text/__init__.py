"""Characters in, batches out: sources -> vocabulary -> corpus -> batches."""
