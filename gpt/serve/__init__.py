"""A model behind HTTP: app -> completion_request -> completions -> served_model -> gpt.sampling."""
