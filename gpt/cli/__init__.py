"""The commands, one file each. Only this folder imports typer."""
