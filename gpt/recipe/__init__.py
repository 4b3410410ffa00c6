"""A text and a time in, a config out."""
