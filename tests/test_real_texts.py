"""Real texts, not ours: read, trained on, saved, resumed, sampled from."""

from typing import Any

import pytest

import gpt
from gpt import api
from gpt.errors import Interrupted
from tests.conftest import SHARED_DATA, small

LARGEST_BYTES = 2**21  # larger texts take long to read, and show nothing else
TEXTS = [path for path in sorted(SHARED_DATA.glob("*.txt")) if path.stat().st_size < LARGEST_BYTES]
if not TEXTS:
    pytest.skip(f"no texts in {SHARED_DATA}", allow_module_level=True)
SMALL = small(
    data__val_fraction=0.0005,
    train__steps=4,
    train__eval_every=4,
    train__checkpoint_every=2,
    train__eval_characters=211,
)


@pytest.mark.parametrize(
    ("text", "vocabulary"), [*((path, "characters") for path in TEXTS), (TEXTS, "bytes")]
)
def test_a_run_on_it_is_trained_stopped_resumed_and_sampled(text: Any, vocabulary: str) -> None:
    """Each text alone, and all of them joined, as bytes."""
    settings = {"data.vocabulary": vocabulary}
    whole = gpt.train(SMALL, text=text, settings=settings, run_dir="whole")
    steps = []
    with pytest.raises(Interrupted):
        gpt.train(
            SMALL,
            text=text,
            settings=settings,
            run_dir="stopped",
            on_event=lambda event: steps.append(event["step"]),
            should_stop=lambda: 2 in steps,
        )
    resumed = api.resume("stopped")
    assert resumed.step == whole.step == 4
    assert resumed.val_loss == whole.val_loss
    model = gpt.load("stopped", "last")
    sample = "".join(model.generate(length=17, seed=1))
    assert len(sample) == 17
    if vocabulary == "characters":
        assert set(sample) <= set(model.vocabulary.characters)
