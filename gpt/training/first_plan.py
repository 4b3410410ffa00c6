"""Plan the steps of a run with `train.minutes`, before it trains; refuse too few minutes."""

from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.config.train_config import TrainConfig
from gpt.errors import UsageError
from gpt.training.schedule import Schedule
from gpt.training.stopwatch import SAMPLING
from gpt.training.time_budget import AFTERWARDS_S, TimeBudget


def plan_new_run(config: Config, budget: TimeBudget) -> Config:
    """Return a new run's config with as many `train.steps` as fit into `train.minutes`.

    If evaluations would take too much of the time, limit them by `train.eval_characters`. A config
    without `train.minutes`, or with `train.plans`, is returned unchanged.
    """
    if config.train.minutes is None or config.train.plans:
        return config
    config = load_config(config, [*budget.evaluation_limit(config).items()])
    steps = fitting_steps(config.train, budget, Schedule(config), step=0)
    settings = [f"train.steps={steps}", f"train.plans=[[0, {steps}]]"]
    if steps < config.train.warmup_steps:
        settings.append("train.warmup_steps=null")  # the default, a tenth of the steps
    return load_config(config, settings)


def fitting_steps(train: TrainConfig, budget: TimeBudget, schedule: Schedule, step: int) -> int:
    """Return the steps of the whole run; raise UsageError if none fits after `step`."""
    step_s = budget.step_s(schedule, step)
    closing_s = budget.score_s(budget.val_ids) + budget.stopwatch.other_s(SAMPLING)
    if (missing_s := step_s + closing_s - budget.remaining_s) > 0:
        raise UsageError(
            f"train.minutes {budget.limit_s / 60:.2g} is too short for one step: "
            f"{budget.used_s:.1f} s are used, a step takes {step_s:.2g} s, and evaluating, "
            f"saving and sampling at the end take {closing_s + AFTERWARDS_S:.1f} s. Add at "
            f"least {1.2 * missing_s / 60 + 0.01:.2f} minutes"
        )
    return budget.total_steps(train, schedule, step)
