"""Build the page of a lesson."""

from importlib import import_module
from itertools import pairwise

import torch

from gpt.lessons import LESSONS, MODULES
from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained


@torch.no_grad()
def build_page(name: str, seed: int, trained: Trained | None = None, **options: str) -> Page:
    """Build the page of a lesson.

    Args:
        name: a key of `LESSONS`.
        seed: the seed of the lesson's tensors.
        trained: a trained model; the page then ends with the same quantities in that model.
        options: for the lesson `training`, `source`: the text to train on.
    """
    module = MODULES.get(name, name)
    following = dict(pairwise(LESSONS)).get(name)
    page = Page(name, LESSONS[name], f"gpt/lessons/{module}.py", following)
    import_module(f"gpt.lessons.{module}").explain(page, seed, trained, **options)
    return page
