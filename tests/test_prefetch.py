"""The next batch, drawn while the model computes: the same batches, and no waiting for a disk."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.distributed.ranks import SINGLE
from gpt.model.transformer import GPT
from gpt.text.batches import batch, token_dropout
from gpt.text.prefetch import Prefetch
from gpt.training.build_step import build_step
from tests.conftest import small

WAITS_S = 60  # for a thread, on however busy a machine


@given(asked=st.lists(st.integers(0, 5)), steps=st.integers(0, 7))
def test_any_steps_in_any_order_get_what_is_drawn_for_them(asked: list[int], steps: int) -> None:
    """After a rollback, the batch drawn ahead is of a step that does not come."""
    prefetch = Prefetch(lambda step: step**2, steps)
    assert [prefetch(step) for step in asked] == [step**2 for step in asked]


def test_the_next_one_is_drawn_while_the_caller_computes() -> None:
    drawn = [threading.Event() for _ in range(3)]
    prefetch = Prefetch(lambda step: drawn[step].set(), 3)
    prefetch(0)
    assert drawn[1].wait(WAITS_S)
    assert not drawn[2].is_set()


def test_none_is_drawn_past_the_last_step() -> None:
    drawn: list[int] = []
    prefetch = Prefetch(drawn.append, 3)
    for step in range(3):
        prefetch(step)
    prefetch.thread.shutdown()
    assert drawn == [0, 1, 2]


def test_what_fails_in_the_thread_is_raised_at_its_step_and_at_no_other() -> None:
    def draw(step: int) -> int:
        if step == 1:
            raise OSError("the disk is gone")
        return step

    prefetch = Prefetch(draw, 5)
    prefetch(0)
    with pytest.raises(OSError, match="the disk is gone"):
        prefetch(1)
    prefetch(0)
    assert prefetch(3) == 3


def test_each_step_of_a_training_takes_the_batch_of_its_number() -> None:
    """Also where a step is repeated, or the run rolls back; and when windows become longer."""
    config = small(
        model__T=12, train__first_window=4, train__steps=6, train__batch_size=5,
        model__character_dropout=0.3,
    )  # fmt: skip
    ids = (np.arange(997) ** 2 % 31).astype(np.uint8)
    step = build_step(config, GPT(config.model, 31), torch.device("cpu"), SINGLE, ids)
    taken: list[torch.Tensor] = []
    step.model.register_forward_pre_hook(lambda _model, inputs: taken.append(inputs[0]))
    for i in (0, 1, 2, 3, 2, 3, 4, 5, 5, 0):
        taken.clear()
        step(i)
        B, T = (15, 4) if i < 5 else (5, 12)
        x, _ = batch(ids, B, T, seed=config.seed, step=i)
        assert torch.cat(taken).equal(token_dropout(x, 0.3, seed=config.seed, step=i))
