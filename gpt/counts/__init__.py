"""Predict the next id by n-gram counts of the train split, and of the text before the id."""
