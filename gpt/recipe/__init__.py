"""Choose a config for a text and a training time, and train sweeps of several runs."""
