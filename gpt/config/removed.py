"""Settings that earlier versions had: what to do instead, and how the configs of old runs load."""

from typing import Any

REMOVED_SETTINGS = {  # by dotted key: the end of the message that refuses the setting
    "model.counts": "a model is a network without n-gram counts, so leave it out",
    "model.window_counts": "a model is a network without n-gram counts, so leave it out",
    "model.attention_window": "attention sees all of model.T, so set model.T instead",
}


def had_counts(tree: Any) -> bool:
    """Return whether the stored config `tree` is of a run that was trained with n-gram counts."""
    return (
        isinstance(tree, dict)
        and isinstance(tree.get("model"), dict)
        and bool(tree["model"].get("counts"))
    )


def upgraded(tree: Any) -> Any:
    """Return the stored config `tree` of an old run without the settings in `REMOVED_SETTINGS`.

    `model.T` becomes the attention window. Only counts of n-grams could reach further back.
    """
    if not (isinstance(tree, dict) and isinstance(tree.get("model"), dict)):
        return tree  # validation reports it
    old = tree["model"]
    model = {key: value for key, value in old.items() if f"model.{key}" not in REMOVED_SETTINGS}
    if old.get("attention_window") is not None:
        model["T"] = old["attention_window"]
    return tree | {"model": model}
