"""Find a lesson and let it tell itself."""

from importlib import import_module
from itertools import pairwise

import torch

from gpt.lessons import LESSONS
from gpt.lessons.page import Page
from gpt.lessons.trained import Trained


@torch.no_grad()
def tell(name: str, seed: int, trained: Trained | None = None) -> Page:
    """The page of a lesson of `LESSONS`, its tensors drawn from the seed.

    With a trained model the page ends with what the lesson's eyes see in that model.
    """
    onward = dict(pairwise(LESSONS))
    page = Page(name, LESSONS[name], f"gpt/lessons/{name}.py", onward.get(name))
    import_module(f"gpt.lessons.{name}").explain(page, seed, trained)
    return page
