"""The functions that notebooks and commands call: train a model, load a run, use the model.

    import gpt

    outcome = gpt.train("quickstart", text="my.txt", settings={"train.steps": 200})
    model = gpt.load(outcome.run)
    for chunk in model.generate("To be", length=300, seed=1):
        print(chunk, end="")

Neither importing this module nor sampling on a CPU imports torch. The functions can be called from
any thread. In the main thread, the functions that train handle Ctrl-C until they return: see
`train`.
"""

from gpt.api.evaluation import describe, evaluate
from gpt.api.model import Model, load
from gpt.api.run_comparison import compare
from gpt.api.sweeps import resume_sweep, sweep
from gpt.api.training import estimate, resume, train

__all__ = [
    "Model",
    "compare",
    "describe",
    "estimate",
    "evaluate",
    "load",
    "resume",
    "resume_sweep",
    "sweep",
    "train",
]
