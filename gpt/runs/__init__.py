"""Runs on disk: their folders, checkpoints and provenance."""
