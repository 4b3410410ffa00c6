"""Make the page of a lesson."""

from importlib import import_module
from itertools import pairwise

import torch

from gpt.lessons import LESSONS
from gpt.lessons.page import Page
from gpt.lessons.trained import Trained


@torch.no_grad()
def build_page(name: str, seed: int, trained: Trained | None = None, **options: str) -> Page:
    """The page of a lesson of `LESSONS`, its tensors drawn from the seed.

    With a trained model the page ends with the same quantities computed in that model. The lesson
    `training` has the option `source`, the text to train on.
    """
    following = dict(pairwise(LESSONS))
    page = Page(name, LESSONS[name], f"gpt/lessons/{name}.py", following.get(name))
    import_module(f"gpt.lessons.{name}").explain(page, seed, trained, **options)
    return page
