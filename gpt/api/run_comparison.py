"""Compare runs by their settings, their curves and their losses on the same val split."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpt.api.model import Model, load
from gpt.api.run_text import run_config, run_text
from gpt.config.schema import values
from gpt.errors import GPTError, UsageError, counted
from gpt.evaluation.comparison import (
    ComparedRun,
    Comparison,
    compare_runs,
    read_curve,
    read_nanogpt_log,
)
from gpt.files import from_here
from gpt.model.shapes import parameter_count
from gpt.recipe.sweep_spec import read_spec
from gpt.runs.folder import find_run, find_sweep, is_sweep
from gpt.runs.format import has_checkpoint
from gpt.terminal import phase

log = logging.getLogger(__name__)


def compare(runs: str | Path | Sequence[str | Path]) -> Comparison:
    """Compare runs. Runs that differ only by seed form one row.

    The best checkpoint of each run is scored on the val split. If the text of a run is missing, the
    val loss from its training is used, without a confidence interval for unseen texts.

    Args:
        runs: a sweep, or at least two runs, by folder or by name under `runs/`. A file with the
            output of nanoGPT's training counts as a run.

    Returns:
        A Comparison: the rows, and the difference between the first row and each other row.
        Losses are in nats per character (nanoGPT: per token), so vocabularies may differ.

    Raises:
        UsageError: there is no such run, the val texts of two runs differ, a text has changed, or
            there is nothing to compare.
        CheckpointError: a run is damaged.
        TextError: a text is missing, and no val loss in nats per character was stored.
    """
    names = [runs] if isinstance(runs, str | Path) else runs
    paths = [path for name in names for path in _paths(str(name))]
    distinct = [*{path.resolve(): path for path in paths}.values()]
    if len(distinct) < 2:
        raise UsageError(
            f"expected two or more different runs, or a sweep, got "
            f"{counted(len(distinct), 'run')}; `gpt runs` lists all"
        )
    compared = [_log(path) if path.is_file() else _measure(path) for path in distinct]
    with_texts = [run for run in compared if run.val_hashes]
    for run in with_texts:
        first = with_texts[0]
        if set(run.val_hashes).isdisjoint(first.val_hashes):
            raise UsageError(
                f"{first.name} and {run.name} have different val texts, so their losses cannot be "
                f"compared; measure both on the same text by `gpt eval RUN TEXT`"
            )
    return compare_runs(compared)


def _paths(name: str) -> list[Path]:
    """Return the path of a run or log, or the paths of a sweep's runs that have a checkpoint."""
    if Path(name).is_file():
        return [Path(name)]
    if (sweep := find_sweep(name)) is None:
        return [find_run(name)]
    folders = [sweep / run.name for run in read_spec(sweep).runs]
    trained = [folder for folder in folders if has_checkpoint(folder)]
    if missing := len(folders) - len(trained):
        log.warning("%s: left out %s without a checkpoint", sweep, counted(missing, "run"))
    return trained


def _log(path: Path) -> ComparedRun:
    """Read a log that nanoGPT printed. The val losses in it are estimates on random windows."""
    curve, parameters = read_nanogpt_log(path)
    log.warning("%s: trained on an unknown text; its losses are in nats per token", path)
    assert curve.best_loss is not None
    return ComparedRun(name=str(path), curve=curve, loss=curve.best_loss, parameters=parameters)


def _measure(folder: Path) -> ComparedRun:
    """Score the best checkpoint of a run on its val split.

    The result has one or two hashes of the val text: the hash of the whole text (from the
    checkpoint) with `data.val_fraction`; and, unless the text is missing, the hash of the val text.
    """
    with phase("loading the model"):
        from gpt.device import default_modes
        from gpt.evaluation.scored_text import block_losses, val_text

        model = load(folder)
    config, vocabulary = model.config, model.vocabulary
    name, text_sha256 = str(from_here(folder)), model.checkpoint.text_sha256
    curve = read_curve(folder, config.train.batch_size * config.model.T)
    hashes, blocks = [f"{text_sha256} {config.data.val_fraction}"], list[float]()
    try:
        text = val_text(run_text(model))
    except GPTError as error:
        loss = model.checkpoint.val_loss
        if loss is None or vocabulary.is_bytes:  # the loss is unknown, or per byte
            raise type(error)(f"{name}: a comparison needs the text of this run: {error}") from None
        notice = "%s: its text cannot be read (%s), so the val loss recorded in training is shown"
        log.warning(notice, name, error)
    else:
        with phase(f"scoring {name}"), default_modes():
            sums, loss = block_losses(model.module, text)
        curve = curve.scaled(text.units.ids / text.units.characters)
        hashes.append(text.sha256())
        blocks = sums.means()
    return ComparedRun(
        name=name,
        seed=config.seed,
        settings=_settings(folder, model),
        text_sha256=text_sha256,
        val_hashes=hashes,
        curve=curve,
        loss=loss,
        parameters=parameter_count(config.model, len(vocabulary)),
        blocks=blocks,
    )


def _settings(folder: Path, model: Model) -> dict[str, Any]:
    """Return the settings of a run by dotted key.

    If a sweep set `train.minutes`, these are the settings from before training, because training
    sets `train.steps` to the number of steps that fit, which differs between seeds.
    """
    config, sweep, name = run_config(model), folder.resolve().parent, folder.resolve().name
    for trial in read_spec(sweep).runs if is_sweep(sweep) else ():
        if trial.name == name and trial.config.train.minutes is not None:
            return values(trial.config)
    return values(config)
