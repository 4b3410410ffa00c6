"""Removed settings and options: what to use instead of them, and how to load old configs."""

from typing import Any

from gpt.errors import Unreadable

REMOVED_SETTINGS = {  # dotted key -> end of the error message for the setting
    "model.counts": "a model is a network without n-gram counts, so leave it out",
    "model.window_counts": "a model is a network without n-gram counts, so leave it out",
    "model.attention_window": "attention sees all of model.T, so set model.T instead",
    "model.exportable": "gpt export --to huggingface writes any model, so leave it out",
    "data.bad_records": "a record that cannot be read is an error; correct or remove it",
    "data.max_vocabulary": "each character has its own id; set data.vocabulary=bytes for a text "
    "with very many different characters",
    "data.lowercase": "lowercase the file instead, for example by tr A-Z a-z",
    "data.newlines": "CRLF and CR are always read as LF, so leave it out",
    "data.normalize": "a prompt takes the Unicode form of the text, so leave it out",
    "data.separator": "files are joined by an empty line, records by a line end, so leave it out",
    "train.distill": "keep the ensemble, which gpt export writes as it is, or train a single model "
    "on the text alone",
    "train.keep_checkpoints": "the newest two and the best are always kept, so leave it out",
    "train.log_every": "the train loss is recorded every 10 steps, so leave it out",
    "train.beta1": "it is always 0.9, so leave it out",
    "sample.presence_penalty": "use a higher sample.temperature instead",
    "sample.frequency_penalty": "use a higher sample.temperature instead",
}
# command-line option -> the end of the message that refuses the option
REMOVED_OPTIONS = {
    "--jobs": "the runs of a sweep are trained one after another; leave it out",
    "--dynamic": "a model does not learn while it is scored; leave it out",
    "--stride": "windows do not overlap, as in training; leave it out",
    "--to": "the time to the lowest val loss that all runs reach is shown; leave it out",
    "--clear": "delete the cache folder, which data/README.md names",
    "--csv": "use --json",
    "--markdown": "use --json",
    "--presence-penalty": "use a higher --temperature instead",
    "--frequency-penalty": "use a higher --temperature instead",
}
# dotted key -> (last commit that loads runs with any value, the only value that loads now)
LOADED_UNTIL: dict[str, tuple[str, Any]] = {"data.max_vocabulary": ("93286f7", None)}
# dotted key -> (last commit that resumes runs with any value, only value that resumes now)
RESUMED_UNTIL: dict[str, tuple[str, Any]] = {
    "train.distill": ("93286f7", None),
    "train.beta1": ("ce3fd9c", 0.9),
    "data.lowercase": ("7050005", False),
    "data.newlines": ("7050005", "lf"),
    "data.normalize": ("7050005", "none"),
}

COUNTS_FILE = "counts.safetensors"  # file in each checkpoint of a run with n-gram counts
COUNTS_NOTICE = (
    "%s was trained with n-gram counts, which this version does not have; only its network is "
    "used, and the val loss of the network alone is not known"
)


def had_counts(tree: Any) -> bool:
    """Return whether the run with the stored config `tree` was trained with n-gram counts."""
    return bool(_section(tree, "model").get("counts"))


def cannot_resume(tree: Any) -> str | None:
    """Return why a run with the stored config `tree` cannot be resumed, or None if it can be."""
    for key, (commit, value) in RESUMED_UNTIL.items():
        section, _, name = key.partition(".")
        if _section(tree, section).get(name, value) != value:
            return f"its {key} was removed; commit {commit} is the last that can resume it"
    data = _section(tree, "data")
    separator = "\n\n" if data.get("column") is None else "\n"
    if data.get("separator", separator) != separator:
        return "its data.separator was removed; commit 7050005 is the last that can resume it"
    if (data.get("documents"), data.get("split")) == ("separator", "documents"):
        return "data.documents=separator was removed; commit 8331f5f is the last that can resume it"
    return None


def upgraded(tree: Any) -> Any:
    """Return the stored config `tree` of an old run without the settings in `REMOVED_SETTINGS`.

    The removed value `separator` of `data.documents` becomes the default. `model.T` becomes the
    attention window if there was one: only n-gram counts saw more characters. The results of the
    network are unchanged. Some runs can be loaded, but not resumed: see `cannot_resume`.

    Raises:
        Unreadable: the run needs a setting in `LOADED_UNTIL`.
    """
    if not isinstance(tree, dict):
        return tree  # validation will refuse this type
    kept = dict(tree)
    for key in REMOVED_SETTINGS:
        section, _, name = key.partition(".")
        if name in (values := _section(kept, section)):
            commit, value = LOADED_UNTIL.get(key, ("", values[name]))
            if values[name] != value:
                raise Unreadable(
                    f"the run was trained with {key}, which does not exist any more; the last "
                    f"commit that loads it is {commit}"
                )
            kept[section] = {each: value for each, value in values.items() if each != name}
    if _section(kept, "data").get("documents") == "separator":
        kept["data"] = {**kept["data"], "documents": "files"}
    if (window := _section(tree, "model").get("attention_window")) is not None:
        kept["model"]["T"] = window
    return kept


def _section(tree: Any, name: str) -> dict[str, Any]:
    """Return the section `name` of a config, or {} if there is none."""
    section = tree.get(name) if isinstance(tree, dict) else None
    return section if isinstance(section, dict) else {}
