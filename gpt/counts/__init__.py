"""Predict the next id by counting n-grams in the train split and in the current window."""
