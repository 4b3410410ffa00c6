"""A model and a text in, numbers out."""
