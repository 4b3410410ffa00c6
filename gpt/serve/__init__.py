"""A model behind HTTP: app (requests) -> completions (texts) -> batch (ids) -> gpt.sampling."""
