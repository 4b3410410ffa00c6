"""A model behind HTTP: app -> completions -> served_model -> gpt.sampling."""
