"""How a run ended."""

from dataclasses import asdict, dataclass

from gpt.evaluation.baselines import measure_baselines
from gpt.model.transformer import count_parameters
from gpt.training.evaluator import Evaluator


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    `val_loss` and `best_val_loss` are in nats per id: a character, or with bytes a byte.
    """

    run: str  # the folder
    text: str  # name of the text
    config: str  # path of the resolved config
    seed: int
    parameters: int
    reason: str  # why training ended
    step: int
    val_loss: float
    val_loss_per_character: float  # nats
    best_val_loss: float
    best_val_loss_per_character: float  # nats
    bits_per_byte: float  # best val loss per byte of UTF-8; compares runs of any vocabulary
    best_step: int
    trigram_bits_per_character: float | None  # see Baselines
    xz_bits_per_character: float
    elapsed_s: float  # seconds of training, over all resumes
    seconds: float  # seconds of this call


def summarise(evaluator: Evaluator, step: int, seconds: float) -> Outcome:
    """Return the outcome of a run that ended at `step`, `seconds` after its call."""
    context, scores = evaluator.context, evaluator.final_scores()
    return Outcome(
        run=context.name,
        text=context.corpus.name,
        config=f"{context.name}/config.yaml",
        seed=context.config.seed,
        parameters=sum(count_parameters(evaluator.model).values()),
        reason=evaluator.reason_to_stop,
        step=step,
        val_loss_per_character=evaluator.units.per_character(scores["val_loss"]),
        best_val_loss_per_character=evaluator.units.per_character(scores["best_val_loss"]),
        best_step=evaluator.progress.best_step,
        elapsed_s=round(evaluator.progress.elapsed_s, 1),  # as saved
        seconds=round(seconds, 1),
        **scores,
        **asdict(measure_baselines(context.corpus)),
    )
