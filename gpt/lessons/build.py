"""Build the page of a lesson."""

from importlib import import_module
from itertools import pairwise

import torch

from gpt.lessons import FOLLOW, FOLLOW_TITLE, LESSONS, LOGIT_LENS, MODULES, SOURCES
from gpt.lessons.follow import explain_follow
from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained


@torch.no_grad()
def build_page(name: str, seed: int, trained: Trained | None = None) -> Page:
    """Build the page of a lesson.

    Args:
        name: a key of `LESSONS`, or `FOLLOW`.
        seed: seed of the lesson's random tensors.
        trained: a trained model, which the page also shows. `FOLLOW` requires it.
    """
    if name == FOLLOW and trained is not None:
        page = Page(name, FOLLOW_TITLE, "gpt/lessons/follow.py", None, [LOGIT_LENS])
        explain_follow(page, trained)
        return page
    module = import_module(f"gpt.lessons.{MODULES.get(name, name)}")
    file = f"{module.__name__.replace('.', '/')}.py"
    following = dict(pairwise([*LESSONS, FOLLOW]))[name]
    page = Page(name, LESSONS[name], file, following, SOURCES[name])
    module.explain(page, seed)
    if trained is not None:
        exercise = page.parts.pop()
        trained.introduce(page)
        module.explain_trained(page, trained)
        page.parts.append(exercise)
    return page
