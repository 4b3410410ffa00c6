"""A run on disk: its folder, its checkpoints, where they came from."""
