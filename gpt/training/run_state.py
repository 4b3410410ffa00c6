"""`RunState`: what a new or resumed run starts from."""

from dataclasses import dataclass

from gpt.config.schema import Config
from gpt.training.build_step import Update
from gpt.training.evaluator import Progress
from gpt.training.schedule import Schedule
from gpt.training.time_budget import TimeBudget


@dataclass(frozen=True)
class RunState:
    """State from which a new or resumed run trains."""

    config: Config  # to train with
    step: int  # number of steps done
    update: Update
    schedule: Schedule
    budget: TimeBudget
    progress: Progress
    saved_config: Config | None = None  # the settings in the checkpoint; None for a new run
