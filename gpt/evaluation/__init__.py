"""Evaluate models and texts: losses, attention, baselines and statistics of characters."""
