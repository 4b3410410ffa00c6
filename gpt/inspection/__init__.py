"""A model in, pictures out: attention (the figures) -> picture (PNG), page (HTML)."""
