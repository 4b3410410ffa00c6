"""The commands, a file each: parse, call one function, print. Only this folder imports typer."""
