"""Build the page of a lesson."""

from importlib import import_module
from itertools import pairwise

import torch

from gpt.lessons import LESSONS, MODULES, SOURCES
from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained


@torch.no_grad()
def build_page(name: str, seed: int, trained: Trained | None = None) -> Page:
    """Build the page of a lesson.

    Args:
        name: a key of `LESSONS`.
        seed: seed of the lesson's random tensors.
        trained: a trained model. If given, the page also shows the lesson's step in this model.
    """
    module = import_module(f"gpt.lessons.{MODULES.get(name, name)}")
    file = f"{module.__name__.replace('.', '/')}.py"
    page = Page(name, LESSONS[name], file, dict(pairwise(LESSONS)).get(name), SOURCES[name])
    module.explain(page, seed)
    if trained is not None:
        exercise = page.parts.pop()
        trained.introduce(page)
        module.explain_trained(page, trained)
        page.parts.append(exercise)
    return page
