"""What a notebook relies on: `gpt.train`, `gpt.load` and what a loaded model gives."""

import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpt
from gpt.errors import ConfigError, UsageError
from gpt.sampling.samples import collect
from tests.conftest import PANGRAM, small


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 11 steps, trained from Python."""
    folder = tmp_path_factory.mktemp("api")
    text = folder / "pangram.txt"
    text.write_text(PANGRAM * 29, "utf-8")
    outcome = gpt.train(small(), text=str(text), run_dir=folder / "run")
    return Path(outcome.run)


def test_generate_streams_what_the_command_line_prints(run: Path) -> None:
    text = "".join(gpt.load(run).generate("the ", length=31, seed=7))
    command = [sys.executable, "-m", "gpt", "sample", str(run), "--prompt", "the "]
    done = subprocess.run(
        [*command, "--length", "31", "--seed", "7"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"the {text}\n"
    assert len(text) == 31


def test_the_loss_of_a_text_is_that_of_its_logits(run: Path) -> None:
    model = gpt.load(run)
    text = "the lazy dog."  # 13 characters: one window of T = 13 holds all but the last
    logits = model.logits(text)
    assert logits.shape == (13, len(model.vocabulary))
    nats = [
        -math.log(logits[t].double().softmax(-1)[model.vocabulary.characters.index(c)])
        for t, c in enumerate(text[1:])
    ]
    assert model.loss(text) == pytest.approx(sum(nats) / 12, rel=1e-5)


def test_the_loss_of_the_val_split_is_the_runs_val_loss(run: Path) -> None:
    text = PANGRAM * 29
    outcome = gpt.load(run, "last")
    records = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    (last,) = [record for record in records if '"step": 11' in record and "val_loss" in record]
    val_loss = float(last.split('"val_loss": ')[1].rstrip("}").split(",")[0])
    assert outcome.loss(text[int(0.9 * len(text)) :]) == pytest.approx(val_loss, rel=1e-6)


def test_attention_has_a_row_of_weights_for_each_character(run: Path) -> None:
    weights = gpt.load(run).attention("a quick fox").weights
    assert weights.shape == (2, 3, 11, 11)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 11))


def test_an_analysis_tells_what_the_loss_would_be_without_each_head(run: Path) -> None:
    model = gpt.load(run)
    analysis = model.attention_analysis("a quick fox")
    assert analysis.losses.mean().item() == pytest.approx(model.loss("a quick fox"), rel=1e-5)
    assert analysis.losses_without.shape == (2, 3, 10)
    torch.testing.assert_close(analysis.weights, model.attention("a quick fox").weights)


def test_two_models_are_loaded_at_once(run: Path, tmp_path: Path) -> None:
    other = gpt.train(small(seed=3), text=str(run.parent / "pangram.txt"), run_dir=tmp_path / "b")
    a, b = gpt.load(run), gpt.load(other.run)
    before = a.logits("the ")
    assert not torch.equal(before, b.logits("the "))
    assert torch.equal(before, a.logits("the "))


def test_a_thread_trains_and_samples_and_changes_no_global_state(run: Path, tmp_path: Path) -> None:
    """Signal handlers can only be set in the main thread: training there once needed it."""
    before = torch.get_num_threads(), torch.get_rng_state(), threading.excepthook
    texts: list[str] = []

    def work() -> None:
        outcome = gpt.train(
            small(model__dropout=0.1), text=str(run.parent / "pangram.txt"), run_dir=tmp_path / "t"
        )
        texts.append("".join(gpt.load(outcome.run).generate("fox", length=17, seed=1)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [len(text) for text in texts] == [17]
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert threading.excepthook is before[2]


def test_settings_are_changed_by_a_mapping(run: Path, tmp_path: Path) -> None:
    outcome = gpt.train(
        small(),
        text=str(run.parent / "pangram.txt"),
        settings={"train.steps": 3, "sample.top_k": None},
        run_dir=tmp_path / "short",
    )
    assert outcome.step == 3
    resumed = gpt.resume(outcome.run, settings={"train.steps": 5})
    assert resumed.step == 5


def test_what_is_wrong_is_raised_as_one_message(run: Path) -> None:
    model = gpt.load(run)
    with pytest.raises(UsageError, match="outside the model's vocabulary: 9"):
        model.logits("9")
    with pytest.raises(
        UsageError, match=r"expected a text of 1 to model\.T = 13 characters, got 14"
    ):
        model.logits("the quick brow")
    with pytest.raises(UsageError, match="at least 2 characters, got 1"):
        model.loss("t")
    with pytest.raises(ConfigError, match=r"did you mean train\.steps"):
        gpt.train(settings={"train.step": 3})
    with pytest.raises(UsageError, match="nowhere"):
        gpt.load("nowhere")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": -5}, "length: expected greater than or equal to 0, got -5"),
        ({"length": "x"}, "length: expected a valid integer, got 'x'"),
        ({"seed": True}, "seed: expected a whole number from 0 on, got True"),
        ({"seed": 1.0}, "seed: expected a whole number from 0 on, got 1.0"),
        ({"seed": "x"}, "seed: expected a whole number from 0 on, got 'x'"),
        ({"seed": -1}, "seed: expected a whole number from 0 on, got -1"),
        ({"stops": 3}, "stops: expected a str or a list of str, got 3"),
        ({"stops": [3]}, "stops: expected a str or a list of str, got [3]"),
        ({"stops": ""}, "stops: expected strings of at least one character, got ''"),
        ({"until_stop": True}, "until_stop: expected stops, which end the samples, got none"),
        ({"ban": 3}, "ban: expected a str or a list of str, got 3"),
        ({"prompt": 3}, "prompts: expected a str or a list of str, got [3]"),
        (
            {"prompt": "9"},
            "the text has characters outside the model's vocabulary: 9; leave them out, or pass "
            "drop_unknown=True",
        ),
        ({"top_k": 0}, "top_k: expected greater than 0, got 0"),
        ({"min_p": 7}, "min_p: expected less than or equal to 1, got 7"),
        ({"temperature": "x"}, "temperature: expected a valid number, got 'x'"),
    ],
)
def test_an_argument_that_cannot_be_is_refused(
    run: Path, options: dict[str, Any], message: str
) -> None:
    """A negative length generated without end; top_k = 0 failed inside numpy.

    Bug: seeds of any type were accepted, and wrong types ended in raw errors.
    """
    with pytest.raises(UsageError) as refused:
        gpt.load(run).generate(**options)
    assert str(refused.value) == message


def test_numpy_numbers_are_numbers(run: Path) -> None:
    model = gpt.load(run)
    options: dict[str, Any] = {"length": np.int64(9), "seed": np.uint8(3), "top_k": np.int32(5)}
    options |= {"temperature": np.float32(0.5)}
    plain = {name: value.item() for name, value in options.items()}
    assert "".join(model.generate("the ", **options)) == "".join(model.generate("the ", **plain))


def test_one_stop_string_is_a_string_or_a_list_of_one(run: Path) -> None:
    """Bug: stops="END" stopped at each of its letters; so was a str of prompts each letter."""
    model = gpt.load(run)
    whole = "".join(model.generate("the ", length=200, seed=3))
    stop = whole[150:153]
    text = "".join(model.generate("the ", length=200, seed=3, stops=stop))
    assert text == whole[: whole.index(stop)]
    assert not all(c not in text for c in stop)
    chunks = list(model.sample("the ", length=9, seed=3))
    assert ({chunk.sample for chunk in chunks}, chunks[-1].ended) == ({0}, True)


def test_several_samples_are_those_of_sample_and_generate_streams_one(run: Path) -> None:
    """Bug: generate(num_samples=2) mixed two texts character by character."""
    model = gpt.load(run)
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_samples'"):
        model.generate("the ", num_samples=2)  # type: ignore[call-arg]
    samples = collect(model.sample("the ", num_samples=2, length=9, seed=3), ["the "] * 2)
    assert samples[0].text == "".join(model.generate("the ", length=9, seed=3))
    assert samples[0].text != samples[1].text


def test_logits_can_be_used_with_autograd(run: Path) -> None:
    """Bug: they were an inference tensor, which no backward pass takes."""
    logits = gpt.load(run).logits("the ")
    scale = torch.ones(1, requires_grad=True)
    (logits * scale).sum().backward()
    assert scale.grad is not None
    assert not logits.is_inference()


def test_the_loss_of_a_text_with_unknown_characters(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: there was no way to leave them out, and to learn how many they are."""
    model, text = gpt.load(run), "the 9 lazy 9Ω dogs"
    with pytest.raises(UsageError, match=r"9 Ω; leave .* drop_unknown=True"):
        model.loss(text)
    assert model.loss(text, drop_unknown=True) == model.loss("the  lazy  dogs")
    assert model.unknown_characters(text) == {"9": 2, "Ω": 1}
    assert caplog.messages == [
        "dropped 3 of 18 characters, which are outside the model's vocabulary: 9 Ω"
    ]


def test_one_setting_is_a_string_or_a_list_of_one(run: Path) -> None:
    """Its letters were taken as settings."""
    with pytest.raises(ConfigError, match=r"^train\.step: unknown key"):
        gpt.train(text="x.txt", settings="train.step=3")


def test_a_text_is_named_by_a_path_too(text_file: Path) -> None:
    """`Path("my.txt")`, as a notebook has it, ended in a TypeError."""
    first = gpt.train(small(), text=text_file, settings={"train.steps": 2})
    both = gpt.train(small(), text=[text_file, str(text_file)], settings={"train.steps": 2})
    assert (first.text, first.run) == (str(text_file), "runs/pangram")
    assert both.run == "runs/pangram-2"
    assert Path(both.run).is_dir()
