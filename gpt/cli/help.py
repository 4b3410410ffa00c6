"""The option `--help-all`, which prints the help and a list of all settings."""

from typing import Annotated

import typer


def _show_all(ctx: typer.Context, asked: bool) -> None:
    """If `--help-all` is given, print the help and all settings in their groups, and exit."""
    if not asked:
        return
    from gpt.config.schema import SETTINGS

    groups: dict[str, list[tuple[str, str]]] = {}
    widest = max(map(len, SETTINGS))
    for setting in SETTINGS.values():
        row = (setting.key.ljust(widest), f"{setting.description}  [{setting.default}]")
        groups.setdefault(setting.group, []).append(row)
    formatter = ctx.make_formatter()
    heading = "\nSettings, in a config file or by --set KEY=VALUE; defaults in brackets"
    with formatter.section(heading):
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)
    typer.echo(ctx.get_help())
    typer.echo(formatter.getvalue().rstrip("\n"))
    raise typer.Exit


HelpAllFlag = Annotated[
    bool,
    typer.Option(
        "--help-all", is_eager=True, callback=_show_all, help="Show this and all settings."
    ),
]
