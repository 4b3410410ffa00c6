"""`--help-all`, and suggestions for unknown commands and options."""

import difflib
from typing import Annotated, Any

import typer

OTHER_COMMANDS = {  # command to words that people try instead
    "sample": "generate complete chat",
    "runs": "list ls show",
    "runs --delete RUN": "delete remove rm",
    "train": "fit run",
    "train --resume": "resume continue",
    "train --init-from RUN": "finetune fine-tune",
}
OTHER_OPTIONS = {  # option to options that people try instead
    "--minutes N or --set train.steps=N": "--epochs --epoch --time",
    "--run-dir DIR": "--out-dir --output-dir --output --name",
    "--length N": "--max-new-tokens --max-tokens --max-length --tokens",
    "--frequency-penalty X or --presence-penalty X": "--repetition-penalty",
}


def _show_all(ctx: typer.Context, asked: bool) -> None:
    """Print the help, then every setting by its group, and exit."""
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


def suggested_command(word: str) -> str:
    """Return a sentence that names the command for an unknown `word`, or nothing."""
    meant = [name for name, words in OTHER_COMMANDS.items() if word in words.split()]
    return f" Did you mean '{meant[0]}'?" if meant else ""


def suggested_option(option: str, ctx: Any) -> str:
    """Return a clause that names an option for an unknown `option` of a command, or nothing.

    `--minuts` gives `; did you mean --minutes?`.
    """
    known = [name for each in ctx.command.params for name in each.opts if name.startswith("--")]
    meant = [name for name, words in OTHER_OPTIONS.items() if option in words.split()]
    near = [name for name in meant if name.split()[0] in known]
    near += [name for name in known if name.startswith(option)]
    near += difflib.get_close_matches(option, known, n=1, cutoff=0.75)
    if not near and "--set" in known:
        from gpt.config.mistakes import nearest_setting

        key = nearest_setting(option.strip("-"), cutoff=0.8)
        near = [f"--set {key}=VALUE"] if key else []
    return f"; did you mean {near[0]}?" if near else ""
