"""The pages of --help: nothing cut, and the settings of a config grouped by what they are about."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

WIDEST_HELP = 100  # columns, where the terminal has more


class Commands(TyperGroup):
    """Lists the commands with the whole first sentence of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """See TyperGroup, which cuts the sentences to a line."""
        rows = [
            (name, self.commands[name].get_short_help_str(limit=1000))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class CommandWithSettings(TyperCommand):
    """Ends the help with every setting of a config."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """See TyperCommand."""
        from gpt.config.schema import GROUPS, Config, default_text, fields

        groups: dict[str, list[tuple[str, str]]] = {}
        for key, description, _ in fields(Config()):
            group = GROUPS.get(key) or [*groups][-1]
            row = (key, f"{description}  [{default_text(key)}]")
            groups.setdefault(group, []).append(row)
        widest = max(len(key) for rows in groups.values() for key, _ in rows)
        heading = "Settings, in a config file or by --set KEY=VALUE; defaults in brackets"
        with formatter.section(heading):
            for group, rows in groups.items():
                with formatter.section(group):
                    formatter.write_dl([(key.ljust(widest), text) for key, text in rows])
