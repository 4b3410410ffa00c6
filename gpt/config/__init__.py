"""One typed tree of settings, from defaults, a YAML file and `--set`. Imports no torch."""
