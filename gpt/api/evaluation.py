"""Evaluate a model on a text, or analyse its attention. Importing this module imports torch."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpt.api.model import Model
from gpt.api.run_text import encode_sources, open_sources, run_text
from gpt.api.settings import TextPath, changed_config
from gpt.device import default_modes
from gpt.errors import GPTError, UsageError, arguments
from gpt.evaluation.evaluation_report import EvaluationReport, evaluate_text
from gpt.evaluation.head_analysis import AttentionAnalysis, analyze_text
from gpt.evaluation.memorisation import SAMPLES, SEARCHED_CHARACTERS, measure_memorisation
from gpt.evaluation.scored_text import ScoredText, other_text, val_text
from gpt.model.ensemble import members_of
from gpt.reading.sources import may_have_columns
from gpt.sampling.stopping import collect
from gpt.terminal import phase

log = logging.getLogger(__name__)


def evaluate(
    model: Model,
    text: TextPath | Sequence[TextPath] | None = None,
    *,
    by: str | Sequence[str] = (),
    memorisation: bool = False,
    surprise: bool = False,
) -> EvaluationReport:
    """Compute the loss of a model on a text, and compare it with simple predictors.

    Args:
        model: the model, from `gpt.load`.
        text: one text or several, each a file, a folder, a glob, or a name as in `train`. They are
            read with the settings of the run. The default is the val split of the run.
        by: properties by which to break the loss down: position, script or character.
        memorisation: whether to also search samples of the model, and the text, for passages of 32
            ids that occur in the train split.
        surprise: whether to also return, for each of the first 2**20 ids, its loss and the five
            ids that were likeliest in its place.

    Returns:
        An EvaluationReport: losses with a confidence interval, accuracy, calibration, and losses of
        simple predictors. `loss` is in nats per id (character or byte); on val, it is the val loss.

    Raises:
        UsageError: an argument is wrong, or the run's text has changed.
        TextError: the text is missing, cannot be read, or has too few characters of the model's
            vocabulary.
    """
    if text is None:
        scored = val_text(run_text(model, "to evaluate another text, name it after the run"))
    else:
        scored = _text(model, text)
    if memorisation and scored.train is None:
        option = arguments("memorisation")
        raise UsageError(
            f"{option} needs the text that the run was trained on; put it back, or leave out "
            f"{option}"
        )
    with phase("loading the model"):
        module = model.module
    by = [by] if isinstance(by, str) else by
    with default_modes():
        report = evaluate_text(module, scored, by=by, surprise=surprise)
    if not memorisation:
        return report
    with phase("sampling"):
        chunks = model.sample("", num_samples=SAMPLES, length=SEARCHED_CHARACTERS)
        samples = collect(chunks, [""] * SAMPLES)
    ids = [scored.vocabulary.encode(sample.text) for sample in samples]
    with phase("searching the train split"):
        return replace(report, memorisation=measure_memorisation(scored, ids))


def _text(model: Model, text: TextPath | Sequence[TextPath]) -> ScoredText:
    """Read the named texts, and encode them with the model's vocabulary."""
    changes: dict[str, Any] = {
        "data.val_source": None,
        "data.split": "tail",
        "data.vocabulary": "bytes" if model.vocabulary.is_bytes else "characters",
        "train.init_from": None,
    }
    names = [text] if isinstance(text, str | Path) else text
    if not any(may_have_columns(str(name)) for name in names):
        changes["data.column"] = None
    config = changed_config(model.config, text, changes)
    corpus = encode_sources(config, open_sources(config.data))
    if corpus.sha256 == model.checkpoint.text_sha256:
        log.warning(
            "%s is the text that the model was trained on, so its loss is lower than on new text; "
            "leave TEXT out to score the val split of the run",
            corpus.name,
        )
    try:
        train = run_text(model).train
    except GPTError as error:
        log.warning("not compared with simple predictors, which need the run's text: %s", error)
        train = None
    return other_text(corpus, model.vocabulary, train)


def analyze_attention(model: Model, text: str) -> AttentionAnalysis:
    """Compute the attention weights of all heads on a text, and the effect of each head.

    Args:
        model: the model, from `gpt.load`. For an ensemble, only the first member is used.
        text: T ids (characters or bytes), where T is from 1 to `model.config.model.T`.

    Returns:
        An AttentionAnalysis: the tensors of an Attention, and four more. `losses` (T - 1,) are the
        network's losses in nats at each character but the first. `losses_without`
        (n_layer, H, T - 1) are these losses with one head ablated. `previous` (n_layer, H) is
        each head's mean weight on the previous character. `induction` (n_layer, H) is near 1 for
        heads that attend to the character after an earlier occurrence of the current one.

    Raises:
        UsageError, CheckpointError, OutOfMemory: as `Model.attention` raises them.
    """
    with default_modes():
        return analyze_text(members_of(model.module)[0], model.vocabulary, model.prepare(text))
