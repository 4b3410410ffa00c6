"""Evaluate models and texts: losses, attention, n-grams and statistics of characters."""
