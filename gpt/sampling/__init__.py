"""A model in, characters out: reader -> decoding (pure functions) -> writer -> generator."""
