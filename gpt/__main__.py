"""`python -m gpt` is the command `gpt`."""

from gpt.cli import main

main()
