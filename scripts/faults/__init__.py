"""What goes wrong around a run, many times over: a file for each kind. `soak.py` runs them all."""
