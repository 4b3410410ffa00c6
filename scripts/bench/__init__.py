"""Measurements of the figures in the READMEs: a file for each topic, and one command."""
