"""Pages of --help and --help-all, and suggestions for words that are no command or option."""

import difflib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

WIDEST_HELP = 100  # columns, where the terminal has more


ALL_SETTINGS = "gpt.all_settings"  # key of a context in which help lists the settings
OTHER_COMMANDS = {  # words that people try, and the command that does it
    **dict.fromkeys(("generate", "complete", "chat"), "sample"),
    **dict.fromkeys(("list", "ls", "show"), "runs"),
    **dict.fromkeys(("delete", "remove", "rm"), "runs --delete RUN"),
    **dict.fromkeys(("resume", "continue"), "train --resume"),
    **dict.fromkeys(("finetune", "fine-tune"), "train --init-from RUN"),
    **dict.fromkeys(("config", "settings"), "train --help-all"),
    **dict.fromkeys(("attention", "plot"), "attend"),
    **dict.fromkeys(("lesson", "lessons", "learn"), "explain"),
    **dict.fromkeys(("fit", "run"), "train"),
    "text": "data",
}
OTHER_OPTIONS = {  # options that people try, and those of a command that do it
    **dict.fromkeys(("--epochs", "--epoch", "--time"), "--minutes N or --set train.steps=N"),
    **dict.fromkeys(("--out-dir", "--output-dir", "--output", "--name"), "--run-dir DIR"),
    **dict.fromkeys(("--max-new-tokens", "--max-tokens", "--max-length", "--tokens"), "--length N"),
    **dict.fromkeys(("--samples", "--count"), "--num-samples N"),
    **dict.fromkeys(("--ckpt", "--step"), "--checkpoint STEP"),
    "--repetition-penalty": "--frequency-penalty X or --presence-penalty X",
    "--chat": "--interactive",
    "--force": "--overwrite",
}


class Commands(TyperGroup):
    """Lists the commands with the whole first sentence of each."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See TyperGroup, which suggests commands that are spelled alike."""
        if args and args[0] not in self.commands and args[0] in OTHER_COMMANDS:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{OTHER_COMMANDS[args[0]]}'?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """See TyperGroup, which cuts the sentences to a line."""
        rows = [
            (name, self.commands[name].get_short_help_str(limit=1000))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _show_all(ctx: typer.Context, asked: bool) -> None:
    if asked:
        ctx.meta[ALL_SETTINGS] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAllFlag = Annotated[
    bool,
    typer.Option(
        "--help-all", is_eager=True, callback=_show_all, help="Show this and all settings."
    ),
]


class CommandWithSettings(TyperCommand):
    """With --help-all, ends the help with every setting of a config."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """See TyperCommand."""
        if ALL_SETTINGS not in ctx.meta:
            return
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


def meant_by(option: str, ctx: Any) -> str:
    """Return a suggestion for an unknown option of the command of `ctx`; nothing if none is near.

    `--minuts` -> `; did you mean --minutes?`.
    """
    known = [name for each in ctx.command.params for name in each.opts if name.startswith("--")]
    other = OTHER_OPTIONS.get(option, "")
    if other.partition(" ")[0] in known:
        return f"; did you mean {other}?"
    near = [name for name in known if name.startswith(option)]
    near = near or difflib.get_close_matches(option, known, n=1, cutoff=0.75)
    if near:
        return f"; did you mean {near[0]}?"
    if "--set" in known:
        from gpt.config.load import nearest_setting

        if key := nearest_setting(option.strip("-"), cutoff=0.8):
            return f"; did you mean --set {key}=VALUE?"
    commands = ctx.parent.command.commands if ctx.parent else {}
    owner = [name for name, each in commands.items() if any(option in p.opts for p in each.params)]
    return f"; gpt {owner[0]} has it" if owner else ""
