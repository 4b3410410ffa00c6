"""The functions that notebooks and commands call: train a model, load a run, use the model.

    import gpt

    outcome = gpt.train("quickstart", text="my.txt", settings={"train.steps": 200})
    model = gpt.load(outcome.run)
    for chunk in model.generate("To be", length=300, seed=1):
        print(chunk, end="")

Neither importing this module nor sampling on a CPU imports torch. The functions can be called from
any thread. In the main thread, `train`, `resume`, `sweep` and `resume_sweep` handle Ctrl-C until
they return; see `train`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt.api.evaluation import analyze_attention as analyze_attention
    from gpt.api.evaluation import evaluate as evaluate
    from gpt.api.exporting import export as export
    from gpt.api.model import Model as Model
    from gpt.api.model import load as load
    from gpt.api.run_comparison import compare as compare
    from gpt.api.run_text import describe as describe
    from gpt.api.sweeps import resume_sweep as resume_sweep
    from gpt.api.sweeps import sweep as sweep
    from gpt.api.training import estimate as estimate
    from gpt.api.training import resume as resume
    from gpt.api.training import train as train

MODULES = {  # name -> the module of gpt.api that defines it
    "Model": "model",
    "analyze_attention": "evaluation",
    "compare": "run_comparison",
    "describe": "run_text",
    "estimate": "training",
    "evaluate": "evaluation",
    "export": "exporting",
    "load": "model",
    "resume": "training",
    "resume_sweep": "sweeps",
    "sweep": "sweeps",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    """Import `name` from its module at the first use, so that `import gpt.api` is fast."""
    if name not in MODULES:
        raise AttributeError(f"module 'gpt.api' has no attribute {name!r}")
    return getattr(import_module(f"gpt.api.{MODULES[name]}"), name)
