"""The commands, one file each: parse options, call one function of gpt.api, print its result.

Only this folder imports typer.
"""
