"""The commands, one file each: parse, call a function, print. Only this folder imports typer."""
