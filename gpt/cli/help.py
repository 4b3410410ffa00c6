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
    "train --help-all": "config settings",
    "attend": "attention plot",
    "explain": "lesson lessons learn",
    "data": "text",
}
OTHER_OPTIONS = {  # option to options that people try instead
    "--minutes N or --set train.steps=N": "--epochs --epoch --time",
    "--run-dir DIR": "--out-dir --output-dir --output --name",
    "--length N": "--max-new-tokens --max-tokens --max-length --tokens",
    "--num-samples N": "--samples --count",
    "--checkpoint STEP": "--ckpt --step",
    "--frequency-penalty X or --presence-penalty X": "--repetition-penalty",
    "--interactive": "--chat",
    "--overwrite": "--force",
}


def _show_all(ctx: typer.Context, asked: bool) -> None:
    """Print the help, then every setting by its group, and exit."""
    if not asked:
        return
    from gpt.config.schema import SETTINGS

    groups: dict[str, list[tuple[str, str]]] = {}
    for setting in SETTINGS.values():
        row = (setting.key, f"{setting.description}  [{setting.default}]")
        groups.setdefault(setting.group, []).append(row)
    widest = max(map(len, SETTINGS))
    formatter = ctx.make_formatter()
    heading = "\nSettings, in a config file or by --set KEY=VALUE; defaults in brackets"
    with formatter.section(heading):
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl([(key.ljust(widest), text) for key, text in rows])
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
    for name, words in OTHER_COMMANDS.items():
        if word in words.split():
            return f" Did you mean '{name}'?"
    return ""


def suggested_option(option: str, ctx: Any) -> str:
    """Return a clause that names an option for an unknown `option` of a command, or nothing.

    `--minuts` gives `; did you mean --minutes?`.
    """
    known = [name for each in ctx.command.params for name in each.opts if name.startswith("--")]
    for other, options in OTHER_OPTIONS.items():
        if option in options.split() and other.split()[0] in known:
            return f"; did you mean {other}?"
    near = [name for name in known if name.startswith(option)]
    near = near or difflib.get_close_matches(option, known, n=1, cutoff=0.75)
    if near:
        return f"; did you mean {near[0]}?"
    if "--set" in known:
        from gpt.config.mistakes import nearest_setting

        if key := nearest_setting(option.strip("-"), cutoff=0.8):
            return f"; did you mean --set {key}=VALUE?"
    for name, each in ctx.parent.command.commands.items() if ctx.parent else ():
        if any(option in parameter.opts for parameter in each.params):
            return f"; gpt {name} has it"
    return ""
