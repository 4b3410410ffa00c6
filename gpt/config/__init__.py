"""One typed tree of settings: defaults -> YAML -> `--set`. Imports no torch."""
