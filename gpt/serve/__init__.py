"""A model behind HTTP. Imports: app -> completions -> served_model -> gpt.sampling."""
