"""Programs that measure the figures in the READMEs."""
