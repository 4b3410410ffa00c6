"""The recipe: what is chosen for a text and a time, and what that is predicted to reach."""

import json
import re
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.config.load import load_config
from gpt.config.schema import Config, DataConfig
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.errors import Interrupted
from gpt.model.transformer import GPT
from gpt.recipe import difficulty
from gpt.recipe.chooser import Chooser
from gpt.recipe.difficulty import Difficulty, measure_difficulty
from gpt.recipe.law import loss_of_repeats, predict, uncertainty
from gpt.recipe.plan import Plan, plan
from gpt.recipe.repetition import context_of, repeated_loss, repeated_part, repeats_much
from gpt.recipe.settings import Choice, context_length, settings_for
from gpt.recipe.speed import (
    Pace,
    Speed,
    measure_paces,
    operations_per_character,
    threads_of_members,
)
from gpt.recipe.unit import reads_better_as_bytes
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.sources import open_source
from gpt.text.splits import train_characters
from gpt.text.vocabulary import BYTES, Vocabulary
from gpt.training.schedule import Schedule
from tests.conftest import PANGRAM

RATE = 3e11  # operations/s: two cores that multiply bfloat16
OVERHEAD_S = 2e-6  # for a character, whatever the model
RECORDED = Path(__file__).parents[1] / "scripts" / "law"
LETTERS = "abcdefghijklm \n"
TEXT = Difficulty(  # as tinyshakespeare's
    train_ids=900_000,
    V=65,
    pilot_loss=1.72,
    pilot_gain=0.223,
    pilot_gap=0.193,
    pilot_characters=800_000,
)
ALONE = Config.model_validate({"device": "cpu", "threads": 1})
USUAL = Choice(3, 128, 4_000_000)  # a run among those that the law was fitted on


def fake_speed(V: int, times: float = 1.0) -> Speed:
    """A machine that trains at RATE, or `times` as fast."""

    def measure(config: Config) -> Pace:
        train_s = (operations_per_character(config.model, V) / RATE + OVERHEAD_S) / times
        return Pace(train_s, train_s / 3)

    return Speed(V, lambda configs: [measure(config) for config in configs])


def speed_at(train_s: float, evaluation_s: float, V: int = 65) -> Speed:
    """A machine that takes as long for any model."""
    return Speed(V, lambda configs: [Pace(train_s, evaluation_s) for _ in configs])


def corpus_of(characters: int, V: int = 65) -> Corpus:
    """A text that takes no memory; nothing of it is read."""
    ids = np.broadcast_to(np.uint8(0), characters)
    train, val = int(0.9 * characters), characters - int(0.9 * characters)
    vocabulary = Vocabulary("".join(chr(0x4E00 + i) for i in range(V)))
    return Corpus(
        name="text",
        ids=ids,
        vocabulary=vocabulary,
        sha256="",
        train_ids=train,
        characters=characters,
        val_characters=val,
        val_bytes=val,
        val_first_bytes=1,
    )


def letters(ids: np.ndarray) -> Corpus:
    """A text of LETTERS."""
    corpus = corpus_of(len(ids), V=len(LETTERS))
    return replace(corpus, ids=ids.astype(np.uint8), vocabulary=Vocabulary.of(LETTERS))


@pytest.fixture
def short_pilots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pilots see a fifth of the characters that they see otherwise."""
    monkeypatch.setattr(difficulty, "MIN_PILOT_CHARACTERS", 20_000)
    monkeypatch.setattr(difficulty, "PILOT_CHARACTERS_PER_MINUTE", 80_000)


def planned(
    characters: int, minutes: float, base: Config | None = None, speed: Speed | None = None,
    **changes: Any,
) -> Plan:  # fmt: skip
    """The plan for a text like TEXT, but for `changes`."""
    corpus = corpus_of(characters, changes.get("V", 65))
    text = replace(TEXT, **{"train_ids": len(corpus.train)} | changes)
    return plan(corpus, minutes, base, difficulty=text, speed=speed or fake_speed(text.V))


def test_settings_are_those_of_the_shipped_configs_at_their_lengths() -> None:
    """The recipes that were found by hand are points of the rule that joins them."""
    cpu, fast = load_config("shakespeare_cpu"), load_config("shakespeare_fast")
    ours = settings_for(Choice(3, 128, 900 * 4096, token_dropout=0.01), T=512)
    keys = ("steps", "batch_size", "muon_learning_rate", "learning_rate", "first_window")
    for key in keys:
        assert getattr(ours.train, key) == getattr(cpu.train, key)
    assert ours.model == cpu.model
    short = settings_for(Choice(2, 128, 140 * 1024), T=256)
    for key in keys:
        assert getattr(short.train, key) == pytest.approx(getattr(fast.train, key), rel=0.02)


@given(characters=st.integers(1_000, 10**12), C=st.integers(1, 500).map(lambda half: 2 * half))
def test_settings_of_any_length_and_width_are_a_valid_config(characters: int, C: int) -> None:
    config = settings_for(Choice(2, C, characters), T=64)
    assert config.model.n_head * config.model.head_size == C
    steps = config.train.steps * config.train.batch_size * config.model.T
    assert steps <= max(characters, config.train.batch_size * config.model.T)


@given(shortest=st.integers(11, 10**9))
def test_the_context_leaves_several_windows_to_each_split(shortest: int) -> None:
    assert context_length(shortest) <= max(8, shortest / 4)


@pytest.mark.parametrize("characters", [2_400, 1_000_000])
def test_an_exportable_config_is_chosen_on_request(characters: int) -> None:
    """A text that repeats itself, and a time for which an ensemble is chosen otherwise."""
    corpus = corpus_of(characters)
    text = replace(TEXT, train_ids=len(corpus.train), repeated_part=0.2, pilot_repeated=0.1)
    for exportable in (False, True):
        base = load_config(None, [("model.exportable", exportable)])
        planned = plan(corpus, 20, base, difficulty=text, speed=fake_speed(text.V))
        chosen = planned.config.model
        assert (chosen.obstacles() == []) == exportable
        assert not exportable or "n-gram embeddings" in str(planned.unknown)  # 0.13 nats too low
        assert exportable or (chosen.key_offset and chosen.ensemble > 1)


@given(
    seen=st.floats(1e4, 9e5),
    more=st.floats(1.0, 10.0),
    n_layer=st.sampled_from([1, 2, 3, 12]),
    C=st.integers(1, 256),
)
def test_more_new_characters_are_never_predicted_to_hurt(
    seen: float, more: float, n_layer: int, C: int
) -> None:
    """With C 8, a run of nine steps was chosen, as more were predicted to hurt."""
    less = Choice(n_layer, C, round(seen))
    assert predict(replace(less, characters=round(min(9e5, seen * more))), TEXT) <= predict(
        less, TEXT
    )


@given(
    passes=st.floats(20.0, 60.0),
    more=st.floats(1.1, 3.0),
    members=st.sampled_from([1, 2, 3, 5, 8, 50]),
)
def test_more_passes_are_predicted_to_overfit_an_ensemble_too(
    passes: float, more: float, members: int
) -> None:
    """In a fit, members averaged away more than all that overfit: 75 passes were the best."""
    text = replace(TEXT, train_ids=18_000, pilot_characters=72_000)
    choice = Choice(2, 64, round(passes * 18_000), members=members)
    longer = replace(choice, characters=round(more * choice.characters))
    assert predict(longer, text) > predict(choice, text)


@pytest.mark.parametrize("text", ["neko", "wikitext2-test", "python-source"])
def test_on_texts_that_it_was_not_fitted_on_the_law_is_within_three_percent(text: str) -> None:
    """Code was predicted to end 8 to 21 % too high: all texts had one slope.

    Later, what a model gains that copies was not counted. Runs are no shorter than the pilot. udhr
    is held out, too, but not promised: its val split is in other scripts than its train split.
    """
    pilots, runs = (
        [json.loads(line) for line in (RECORDED / name).read_text("utf-8").splitlines()]
        for name in ("pilots.jsonl", "runs.jsonl")
    )
    [pilot] = [each for each in pilots if (each["text"], each["minutes"]) == (text, 2.0)]
    difficulty = Difficulty(**{key: pilot[key] for key in pilot if key not in ("text", "minutes")})
    runs = [run for run in runs if run["text"] == text]
    runs = [run for run in runs if run["characters"] >= difficulty.pilot_characters]
    for run in runs:
        choice = Choice(**{field.name: run[field.name] for field in fields(Choice)})
        assert predict(choice, difficulty) == pytest.approx(run["val_loss"], rel=0.03)
    assert len(runs) >= 3


@given(
    part=st.floats(0.2, 1.0),
    each=st.floats(0.0, 4.0),
    characters=st.integers(800_000, 10**8),
    C=st.sampled_from([32, 64, 128, 512]),
)
def test_of_a_text_that_repeats_itself_longer_and_wider_runs_are_predicted_to_copy_better(
    part: float, each: float, characters: int, C: int
) -> None:
    text = replace(TEXT, train_ids=10**9, repeated_part=part, pilot_repeated=part * each)
    costs = [
        loss_of_repeats(choice, text)
        for choice in (
            Choice(2, C, characters),
            Choice(2, C, 2 * characters),
            Choice(2, 2 * C, 2 * characters),
        )
    ]
    costs.insert(0, part * each)
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(costs))  # rounding
    assert costs[-1] >= 0.0


def test_a_prediction_is_less_certain_where_the_pilot_has_not_found_how_to_copy() -> None:
    found, unfound = (
        replace(TEXT, repeated_part=0.3, pilot_repeated=0.3 * nats) for nats in (0.3, 1.5)
    )
    assert uncertainty(1.5, USUAL, TEXT) == uncertainty(1.5, USUAL, found) == pytest.approx(0.045)
    assert uncertainty(1.5, USUAL, unfound) > 2 * uncertainty(1.5, USUAL, found)


def test_a_prediction_is_less_certain_by_a_pilot_that_had_little_time() -> None:
    """Of a Japanese novel, by one of 100,000 characters, 3.59 ± 0.11 was predicted: 3.30."""
    short = replace(TEXT, pilot_characters=100_000)
    assert uncertainty(1.5, USUAL, short) > 1.6 * uncertainty(1.5, USUAL, TEXT)
    of_a_page = replace(short, train_ids=20_000)  # one that sees more says no more
    page = replace(USUAL, characters=200_000)
    assert uncertainty(1.5, page, of_a_page) == uncertainty(1.5, USUAL, TEXT)


@pytest.mark.parametrize(
    "changes",
    [
        {"pilot_loss": 0.505, "pilot_gain": 0.022, "pilot_gap": 0.014},  # a log file
        {"pilot_loss": 0.147, "pilot_gain": 0.022, "pilot_gap": -0.002},  # generated code
        {"pilot_loss": 1.96, "pilot_gain": 0.022, "pilot_gap": 0.0},  # numbers drawn at random
        {"repeated_part": 0.55, "pilot_repeated": 0.4},  # a poem, again and again
        {"pilot_loss": 7.19, "pilot_gap": 5.7},  # val is in other languages than train
    ],
)
def test_where_the_law_does_not_apply_nothing_is_predicted(changes: dict[str, float]) -> None:
    """Bug: of regular texts, 0.08 ± 0.00 was predicted and 0.199 reached, 0.24 ± 0.01 and 0.350."""
    base = Config.model_validate({"model": {"n_layer": 2, "C": 128, "ensemble": 1}})
    described = planned(1_000_000, 2, base, **changes).describe()
    assert described[-1].startswith("no prediction: ")
    assert not any("±" in line for line in described)


def test_a_prediction_is_less_certain_outside_of_what_the_law_was_fitted_on() -> None:
    """Bug: however far a run was from those of the fit, it was predicted to 3 %, to ± 0.00."""
    usual = uncertainty(1.5, USUAL, TEXT)
    for choice in (replace(USUAL, characters=10**8), replace(USUAL, C=768), Choice(24, 128, 10**6)):
        assert uncertainty(1.5, choice, TEXT) > 1.5 * usual
    assert uncertainty(0.3, USUAL, TEXT) / 0.3 > 1.2 * usual / 1.5
    assert f"{uncertainty(1e-6, USUAL, TEXT):.2f}" != "0.00"


@given(
    train_ids=st.integers(20, 10**9),
    V=st.integers(1, 9000),
    pilot_loss=st.floats(0.0, 20.0),
    characters=st.integers(1_000, 10**9),
    members=st.integers(1, 8),
)
def test_a_predicted_loss_is_positive(
    train_ids: int, V: int, pilot_loss: float, characters: int, members: int
) -> None:
    """A text of 2,400 characters was predicted to end at a val loss of -29.7."""
    text = Difficulty(train_ids, V, pilot_loss, 0.3 * pilot_loss, 0.1 * pilot_loss, 90_000)
    for shape in ((2, 32), (4, 192)):
        choice = Choice(*shape, characters=characters, token_dropout=0.3, members=members)
        assert predict(choice, text) >= 0.0
    tiny = replace(TEXT, train_ids=2_166, V=50, pilot_loss=4.0, pilot_gain=-1.0, pilot_gap=3.0)
    assert 0.5 < predict(Choice(2, 32, 20_000), tiny) < 4.5


def test_passes_beyond_many_are_predicted_to_overfit_a_small_text() -> None:
    text = replace(TEXT, train_ids=18_000)
    losses = [predict(Choice(3, 128, 18_000 * passes), text) for passes in (10, 100, 1000)]
    assert losses[0] < losses[1] < losses[2]


@pytest.mark.parametrize("characters", [20_000, 1_000_000, 1_000_000_000])
def test_more_time_is_never_predicted_to_be_worse(characters: int) -> None:
    losses = [planned(characters, minutes).val_loss for minutes in (0.5, 2, 10)]
    assert all(b <= a + 1e-3 for a, b in pairwise(losses))  # lengths are tried in steps


def test_more_time_is_not_predicted_to_be_worse_where_longer_runs_overfit() -> None:
    """Bug: of 200 kB, 1.46 was predicted in five minutes and 1.47 in ten."""
    text = {"V": 62, "pilot_loss": 1.642, "pilot_gain": 0.253, "pilot_gap": 0.247}
    text |= {"pilot_characters": 720_000}
    losses = [planned(200_000, minutes, **text).val_loss for minutes in (5, 10)]
    assert losses[1] <= losses[0] + 1e-3  # lengths are tried in steps


def test_a_small_text_gets_a_small_model_and_few_passes_and_a_large_one_what_time_can_fill() -> (
    None
):
    tiny, usual, huge = (planned(n, 10) for n in (20_000, 1_000_000, 1_000_000_000))
    assert tiny.config.model.C < usual.config.model.C
    assert tiny.ends_early and tiny.passes < 60
    assert 1 < usual.passes < 30
    assert huge.passes < 1
    assert not huge.ends_early


@pytest.mark.parametrize("minutes", [0.05, 0.5])
@pytest.mark.parametrize(
    ("characters", "gain"), [(50, -3.0), (2_400, -3.0), (2_400, 0.2), (20_000, 0.2)]
)
def test_a_page_of_text_gets_a_small_model_that_makes_some_steps(
    characters: int, minutes: float, gain: float
) -> None:
    """Of 2,400 characters, on which the pilot overfits, 510 million parameters once made one."""
    pilot = {"pilot_loss": 5.0, "pilot_gain": gain, "pilot_gap": 3.0, "pilot_characters": 9_984}
    chosen = planned(characters, minutes, **pilot)
    assert chosen.parameters < 2e7
    assert chosen.config.train.steps >= 9 or minutes < 0.2
    assert any("no prediction: the text is too short" in line for line in chosen.describe()) == (
        characters < 20_000
    )


@pytest.mark.parametrize("minutes", [1, 10])
def test_a_plan_stays_inside_the_minutes(minutes: float) -> None:
    for characters in (20_000, 1_000_000, 20_000_000):
        assert planned(characters, minutes).seconds <= 60 * minutes


@pytest.mark.parametrize("minutes", [0.3, 2.0, 3.0, 5.0, 60.0])
def test_evaluations_are_few_in_a_short_run_and_at_equal_distances(minutes: float) -> None:
    """Runs of three minutes were evaluated at 98 % of their steps, too."""
    config = planned(1_000_000, minutes).config
    train, schedule = config.train, Schedule(config)
    due = [step for step in range(train.steps + 1) if schedule.is_due(step, train.eval_every)]
    done = [schedule.part_done(step) for step in due]
    assert 3 <= len(done) <= max(3, min(11, 1 + 60 * minutes / 50))
    assert np.diff(done) == pytest.approx(1 / (len(done) - 1), abs=2 / train.steps)


@pytest.mark.parametrize("setting", [{"patience": 3}, {"stop_at_val_loss": 1.0}])
def test_what_looks_at_evaluations_has_as_many_in_a_short_run(setting: dict[str, object]) -> None:
    """A run of a minute that was to stop at some val loss was looked at half-way and at its end."""
    base = Config.model_validate({"train": setting})
    assert planned(1_000_000, 1.0, base).config.train.eval_every == "10 %"


def test_the_val_split_is_made_smaller_only_where_it_would_take_the_time_for_training() -> None:
    assert "val_fraction" not in planned(10_000_000, 2).config.data.model_fields_set
    huge = planned(1_000_000_000, 2).config
    assert huge.data.val_fraction < 0.1
    kept = Config.model_validate({"data": {"val_fraction": 0.1}})
    assert planned(1_000_000_000, 2, kept).config.data.val_fraction == 0.1


def test_of_no_text_the_last_evaluation_takes_more_than_a_third_of_the_time() -> None:
    """It was that of the smallest model that counted, though a larger one was chosen."""
    base = Config.model_validate({"threads": 1})
    for characters in (10_000_000, 30_000_000, 60_000_000, 100_000_000, 130_000_000):
        config, speed = planned(characters, 2, base).config, fake_speed(65)
        speed.add(config)
        evaluation_s = speed.predict(config).evaluation_s
        assert config.data.val_fraction * characters * evaluation_s < 120 / 3


@pytest.mark.parametrize("characters", [1_000_003, 10_700_003, 102_000_001])
def test_a_smaller_val_split_still_holds_a_window(characters: int) -> None:
    """Rounded down to one digit, val_fraction left less than T + 1 characters.

    Later, T was that of the val split before it was made smaller.
    """
    slow = speed_at(1e-6, evaluation_s=1e3)
    chosen = planned(characters, 2, speed=slow).config
    assert chosen.data.val_fraction * characters > 2 * chosen.model.T
    base = Config.model_validate({"model": {"T": 2048}})
    kept = planned(characters, 2, base, slow).config
    assert kept.model.T == 2048
    assert kept.data.val_fraction * characters > 2048 + 1


def test_a_late_start_leaves_a_val_split_to_speak_of() -> None:
    """When the minutes were gone before the plan, val became two windows."""
    corpus = corpus_of(10_000_000)
    text = replace(TEXT, train_ids=len(corpus.train))
    chosen = plan(corpus, 2, elapsed_s=160.0, difficulty=text, speed=fake_speed(65))
    assert chosen.config.data.val_fraction * corpus.characters >= 20_000


@pytest.mark.parametrize("elapsed_s, measured", [(20.0, 3), (400.0, 2)])
def test_a_late_start_leaves_the_time_to_training_and_measures_no_more(
    elapsed_s: float, measured: int
) -> None:
    """Of 18 seconds on a slow CPU all went into measuring, and two steps were made."""
    corpus, speed = corpus_of(1_000_000), fake_speed(65)
    text = replace(TEXT, train_ids=len(corpus.train))
    plan(corpus, 10.0, elapsed_s=elapsed_s, difficulty=text, speed=speed)
    assert len(speed.measured) == measured


@pytest.mark.parametrize("vocabulary", ["characters", "bytes"])
def test_what_becomes_val_is_known_before_the_text_is_split_again(
    tmp_path: Path, vocabulary: str
) -> None:
    """Of bytes, a part of the ids was taken, and units were those of all of val."""
    path = tmp_path / "mixed.txt"
    path.write_text("learn " * 1000 + "\u5b66\u7fd2\U0001f600" * 300 + "to copy" * 31, "utf-8")
    corpora = [
        load_corpus(open_source(str(path), data), data)
        for data in (
            DataConfig(source=str(path), vocabulary=vocabulary, val_fraction=part)
            for part in (0.2, 0.1, 0.003)
        )
    ]
    for smaller in corpora[1:]:
        ids = corpora[0].last(smaller.val_characters)
        decoded = [c.vocabulary.decode(i) for c, i in ((corpora[0], ids), (smaller, smaller.val))]
        assert decoded[0] == decoded[1]


@pytest.mark.usefixtures("short_pilots")
def test_what_is_predicted_is_the_loss_of_what_becomes_val() -> None:
    """It was that of the whole last tenth, though less became val, which may be harder."""
    ids = np.arange(40_000) * 7 % len(LETTERS)
    ids[-2000:] = np.random.default_rng(2).integers(len(LETTERS), size=2000)
    corpus, base = letters(ids), ALONE
    quick, slow = (
        speed_at(1e-6, 1e-9, V=len(LETTERS)),
        speed_at(1e-6, 1.0, V=len(LETTERS)),
    )
    whole, part = plan(corpus, 0.1, base, speed=quick), plan(corpus, 0.1, base, speed=slow)
    assert "val_fraction" not in whole.config.data.model_fields_set
    assert part.config.data.val_fraction * 40_000 <= 2000
    assert part.val_loss > 1.5 * whole.val_loss
    T, fraction = part.config.model.T, part.config.data.val_fraction
    val = corpus.last(40_000 - train_characters(40_000, fraction))
    text = measure_difficulty(corpus, T, base, 0.1, val=val, repeats=repeats_much(corpus, T))
    assert part.val_loss == plan(corpus, 0.1, base, difficulty=text, speed=slow).val_loss


@given(
    ids=st.lists(st.integers(0, 1), min_size=2, max_size=97).map(lambda x: np.array(x, np.uint8)),
    T=st.integers(1, 53),
    context=st.integers(1, 5),
)
def test_a_repeated_id_is_one_that_followed_the_same_ids_the_last_time(
    ids: np.ndarray, T: int, context: int
) -> None:
    count = 0
    for place in range(1, len(ids)):  # of the id that is predicted
        start = (place - 1) // T * T  # of its window
        seen = ids[start:place].tolist()
        ends = range(context, len(seen))
        earlier = [end for end in ends if seen[end - context : end] == seen[-context:]]
        count += bool(earlier) and seen[earlier[-1]] == ids[place]
    assert repeated_part(ids, T, context) == pytest.approx(count / (len(ids) - 1))


def test_what_repeats_itself_is_measured_in_characters_and_not_by_chance() -> None:
    """In bytes, four of a text in many scripts are little more than one character.

    One character of two bytes made them five; and by chance went by V, so that random bits after
    a line of text, or as bytes, repeated themselves.
    """
    source = np.random.default_rng(7)
    letters = replace(corpus_of(40_000), ids=source.integers(65, size=40_000).astype(np.uint8))
    assert context_of(letters, 512) == 4
    for characters, context in ((4000 // 3, 12), (3999, 4)):
        in_bytes = replace(letters, vocabulary=BYTES, val_characters=characters)
        assert context_of(in_bytes, 512) == context
    drawn = source.integers(2, size=40_000).astype(np.uint8)
    for vocabulary in (Vocabulary("AB"), letters.vocabulary, BYTES):
        bits = replace(letters, ids=drawn, vocabulary=vocabulary)
        assert not repeats_much(bits, 512)
        assert context_of(bits, 8) == 4, "half a window"


@pytest.mark.parametrize("part, repeats", [(0.1, False), (0.35, True)])
def test_a_text_repeats_itself_if_much_of_its_val_split_does(part: float, repeats: bool) -> None:
    """Both of a train split that does not, or of one that is all the same, by turns."""
    source = np.random.default_rng(7)
    runs = []
    for _ in range(400):  # of 100 letters, of which some are those before them
        fresh = source.integers(len(LETTERS), size=round(100 * (1 - part)))
        runs.append(np.concatenate([fresh, fresh[: round(100 * part)]]))
    val = np.concatenate(runs).astype(np.uint8)
    others = np.random.default_rng(8).integers(len(LETTERS), size=90_000).astype(np.uint8)
    for train in (others, np.zeros_like(others)):
        corpus = replace(
            corpus_of(130_000),
            ids=np.concatenate([train, val]),
            vocabulary=Vocabulary.of(LETTERS),
            train_ids=90_000,
            val_characters=40_000,
        )
        assert repeats_much(corpus, 512) == repeats


def test_the_loss_of_repeated_ids_is_theirs_over_all_ids() -> None:
    ids = np.random.default_rng(3).integers(2, size=199).astype(np.uint8)
    vocabulary = Vocabulary("A", unknown=3)  # of which each is a third of id 1
    model = GPT(Config.model_validate({"model": {"T": 17, "C": 8, "n_layer": 1}}).model, 2)
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, 17):
        window = ids[start : start + 18].tolist()
        log_p = model(torch.tensor([window[:-1]])).log_softmax(-1)[0]
        for t in range(3, len(window) - 1):
            context = window[t - 3 : t + 1]
            earlier = [i for i in range(3, t) if window[i - 3 : i + 1] == context]
            if earlier and window[earlier[-1] + 1] == window[t + 1]:
                total, count = total - log_p[t, window[t + 1]].item(), count + 1
                total += np.log(3) * window[t + 1]
    assert repeated_loss(model, ids, vocabulary, 4) == pytest.approx(total / 198, rel=1e-5)
    assert repeated_part(ids, 17, 4) == pytest.approx(count / 198)
    assert count > 9


@pytest.mark.parametrize("period, repeats", [(100, True), (10_007, False)])
def test_a_text_that_repeats_itself_gets_heads_that_look_up_the_last_time(
    period: int, repeats: bool
) -> None:
    ids = np.random.default_rng(13).integers(len(LETTERS), size=period)
    corpus = letters(np.resize(ids, 40_000))
    chooser = Chooser(corpus, fake_speed(65), Config(), minutes=2, repeats=None)
    config = chooser.config(USUAL)
    model, train = config.model, config.train
    assert model.key_offset == repeats
    assert train.first_window == model.T // (2 if repeats else 4)


def test_models_of_a_text_that_repeats_itself_have_two_whole_heads() -> None:
    for C in (32, 64, 128, 320):
        model = settings_for(Choice(2, C, 10**6), T=64, repeats=True).model
        assert model.n_head >= 2
        assert model.head_size == 64
    odd = settings_for(Choice(2, 1186, 10**6), T=64, repeats=True).model
    assert odd.n_head * odd.head_size >= 1150, "of no even number of heads, two of 64 were left"


@pytest.mark.parametrize(
    "model, heads, offset",
    [
        ({"head_size": 5, "positions": "learned"}, None, False),
        ({"n_head": 8, "C": 64}, (8, 8), False),
        ({"key_offset": True, "n_head": 1, "C": 128}, (1, 128), True),
        ({"key_offset": False, "C": 64, "n_layer": 2}, (1, 64), False),
    ],
)
def test_heads_that_are_set_are_kept_on_a_text_that_repeats_itself(
    model: dict[str, object], heads: tuple[int, int] | None, offset: bool
) -> None:
    """Eight heads of a C of 64 had 64 channels each."""
    base = Config.model_validate({"model": model})
    chosen = planned(1_000_000, 2, base, repeated_part=0.2, pilot_repeated=0.1).config
    assert heads is None or (chosen.model.n_head, chosen.model.head_size) == heads
    assert chosen.model.head_size == model.get("head_size", chosen.model.head_size)
    assert chosen.model.key_offset == offset


def test_what_is_set_is_kept_and_the_rest_chosen_around_it() -> None:
    base = Config.model_validate(
        {
            "seed": 7,
            "model": {"n_layer": 2, "C": 96, "n_head": 3, "character_dropout": 0.07},
            "train": {"steps": 3, "learning_rate": 2e-3},
        }
    )
    config = planned(1_000_000, 5, base).config
    assert config.seed == 7
    assert (config.model.n_layer, config.model.C, config.model.n_head) == (2, 96, 3)
    assert (config.model.character_dropout, config.train.learning_rate) == (0.07, 2e-3)
    assert config.train.steps > 100  # which the minutes decide


def test_speed_is_interpolated_between_shapes_that_were_measured() -> None:
    speed = fake_speed(65)
    for shape in ((1, 32), (6, 256)):
        speed.add(settings_for(Choice(*shape, 10**6), T=128))
    for shape in ((2, 64), (3, 128), (4, 192)):
        config = settings_for(Choice(*shape, 10**6), T=128)
        assert speed.predict(config).train_s == pytest.approx(
            speed.measure([config])[0].train_s, rel=0.35
        )


def test_a_shape_is_not_known_by_steps_of_another_length() -> None:
    """On a GPU the pace of long steps was taken to be that of short ones, and short ones chosen."""
    speed = fake_speed(65)
    short, long = (settings_for(Choice(2, 128, 10**6), 128, batch_size=B) for B in (32, 128))
    speed.add(short)
    assert speed.has_measured(short)
    assert not speed.has_measured(long)


def test_two_members_side_by_side_take_longer_than_one_by_less_than_twice() -> None:
    speed = replace(fake_speed(65), threads=2)
    one = settings_for(Choice(3, 128, 10**6), T=128)
    speed.add(one)
    ratio = speed.predict(one.changed(model={"ensemble": 2})).train_s / speed.predict(one).train_s
    assert ratio == pytest.approx(1.74, abs=0.01)  # as measured on two cores


def test_of_eight_threads_five_members_leave_three_idle_and_take_as_long_as_eight() -> None:
    """Numbers of members that do not divide the threads were held to be cheaper than they are."""
    speed, one = replace(fake_speed(65), threads=8), settings_for(Choice(3, 128, 10**6), T=128)
    speed.add(one)
    five, six, eight = (
        speed.predict(one.changed(model={"ensemble": K})).train_s for K in (5, 6, 8)
    )
    assert five == six == eight


@pytest.mark.parametrize(
    ("settings", "shared"),
    [
        ({"threads": 1}, 1),
        ({"threads": 3}, 3),
        ({"threads": 3, "model": {"dropout": 0.1}}, 1),
        ({"threads": 3, "train": {"compile": "on"}}, 1),
    ],
)
def test_members_share_the_threads_unless_they_take_turns(
    settings: dict[str, object], shared: int
) -> None:
    base = Config.model_validate({"device": "cpu", **settings})
    assert threads_of_members(base) == shared


def test_members_that_train_side_by_side_are_predicted_a_lower_loss() -> None:
    alone, at_once = (
        planned(200_000, 1, speed=replace(fake_speed(65), threads=threads)) for threads in (1, 8)
    )
    assert at_once.val_loss < alone.val_loss
    assert at_once.seconds <= 60


def test_a_plan_describes_itself_in_a_few_lines() -> None:
    lines = planned(1_000_000, 5).describe()
    assert len(lines) <= 5
    assert all(len(line) < 120 for line in lines)


@pytest.mark.usefixtures("short_pilots")
def test_text_that_follows_a_rule_is_less_difficult_than_one_drawn_at_random() -> None:
    drawn = np.random.default_rng(11).integers(len(LETTERS), size=40_000)
    losses = []
    for ids in (drawn, np.arange(40_000) * 7 % len(LETTERS)):
        losses.append(measure_difficulty(letters(ids), 64, ALONE, minutes=0.1).pilot_loss)
    assert losses[0] > 0.95 * np.log(len(LETTERS))
    assert losses[1] < 0.05


def test_what_a_text_repeats_and_what_the_pilot_has_learnt_of_it_are_measured() -> None:
    """Each part of a Difficulty could be another, and no test failed."""
    lines = np.random.default_rng(5).integers(len(LETTERS), size=(350, 20))
    corpus = letters(lines.repeat(6, axis=0).flatten()[:40_000])  # six times, and never again
    base = Config.model_validate({"device": "cpu", "threads": 1, "model": {"T": 128}})
    text = measure_difficulty(corpus, 128, base, 0.1, repeats=True)
    assert text.repeated_part == repeated_part(corpus.val, 128, context_of(corpus, 128))
    assert 0.6 < text.repeated_part < 5 / 6
    chance = text.repeated_part * np.log(len(LETTERS))
    assert 0.0 < text.pilot_repeated < 0.1 * chance, "it copies, but not yet at the first quarter"
    assert text.pilot_gain < 0.12 * chance, "of the others, which nothing can predict"
    plain = replace(text, repeated_part=0.0, pilot_repeated=0.0)
    known, measured = (
        plan(corpus, 0.1, base, difficulty=of_text, speed=fake_speed(len(LETTERS)))
        for of_text in (text, None)
    )
    assert (
        known.val_loss != plan(corpus, 0.1, base, difficulty=plain, speed=fake_speed(15)).val_loss
    )
    assert known == measured


def test_ids_drawn_at_random_are_predicted_to_stay_as_they_are() -> None:
    """Of random bits, 0.25 nats were predicted, where 0.69 is the least that there is."""
    text = replace(TEXT, V=2, pilot_loss=0.6935, pilot_gain=0.0003, pilot_gap=0.0004)
    for choice in (Choice(2, 64, 10**6), Choice(6, 256, 10**7)):
        assert predict(choice, replace(text, train_ids=10**8)) == pytest.approx(0.6935, abs=0.01)


@pytest.mark.usefixtures("short_pilots")
@pytest.mark.parametrize(("repeats", "part"), [(False, 0.05), (True, 0.15)])
def test_the_pilot_takes_a_twentieth_of_the_time_or_where_that_says_little_three(
    repeats: bool, part: float
) -> None:
    """Of 20,000 characters that differ, it took 71 seconds of 120."""
    ids = np.random.default_rng(5).integers(len(LETTERS), size=70_000)
    corpus = letters(np.resize(ids[:40], 70_000) if repeats else ids)
    model = {"T": 64, "n_layer": 12, "C": 768}  # so slow that it sees few characters
    base = Config.model_validate({"device": "cpu", "threads": 1, "model": model})
    each_s = part * 1.2e-3  # seconds of the pilot for each character
    speed = Speed(
        len(LETTERS),
        lambda configs: [Pace(each_s if each.model.C == 64 else 3e-3, 1e-9) for each in configs],
    )
    lines = plan(corpus, 0.6, base, speed=speed).describe()
    [pilot] = re.findall("the run is too short .([0-9,]+) characters needed", lines[-1])
    seen = int(pilot.replace(",", ""))
    assert 20_000 < seen < 46_000
    assert seen * each_s == pytest.approx(part * 36, rel=0.03)


def test_a_run_shorter_than_the_pilot_is_trained_and_nothing_predicted() -> None:
    """On a slow machine such a run was predicted, with confidence, far too low."""
    slow = speed_at(3e-4, 1e-5)
    lines = planned(1_000_000, 0.5, speed=slow, pilot_characters=200_000).describe()
    assert "no prediction: the run is too short (200,000 characters needed)" in lines


def test_a_run_that_turns_out_to_be_faster_ends_where_it_would_overfit() -> None:
    """One of half a minute planned 125 steps, made 291 and ended above its own best."""

    text = replace(TEXT, train_ids=27_000, pilot_characters=100_000)
    slow, fast = (
        plan(corpus_of(30_000), minutes, difficulty=text, speed=speed)
        for minutes, speed in ((0.5, speed_at(1e-4, 1e-5)), (9, fake_speed(65)))
    )
    train, model = slow.config.train, slow.config.model
    assert not slow.ends_early
    in_step = train.batch_size * model.T

    def loss(steps: int) -> float:
        shape = Choice(model.n_layer, model.C, steps * in_step, model.character_dropout)
        return predict(replace(shape, members=model.ensemble), text)

    assert train.max_steps is not None
    assert train.steps < train.max_steps
    assert loss(train.max_steps) < loss(train.steps)
    assert loss(train.max_steps) < loss(2 * train.max_steps)
    assert fast.config.train.max_steps == fast.config.train.steps
    assert planned(1_000_000_000, 2).config.train.max_steps is None


@pytest.mark.usefixtures("short_pilots")
def test_the_pilot_sees_more_the_more_minutes_there_are_but_few_passes() -> None:
    ids = np.random.default_rng(5).integers(len(LETTERS), size=60_000)
    seen = []
    for minutes, characters in ((0.1, 60_000), (0.4, 60_000), (60, 6_000)):
        measured = measure_difficulty(letters(ids[:characters]), 64, ALONE, minutes)
        assert measured.pilot_loss == pytest.approx(np.log(len(LETTERS)), rel=0.05)
        assert measured.repeated_part == measured.pilot_repeated == 0.0
        seen.append(measured.pilot_characters)
    assert 1.4 * seen[0] < seen[1]
    assert seen[2] <= 4 * 5_400


def test_a_pace_is_measured_in_seconds_for_a_character() -> None:
    ids = np.random.default_rng(3).integers(13, size=20_000).astype(np.uint8)
    corpus = replace(corpus_of(20_000, V=13), ids=ids)
    config = settings_for(Choice(1, 32, 10**5), T=64).model_copy(update={"device": "cpu"})
    several = config.changed(model={"ensemble": 2})
    for pace in measure_paces([config, several], corpus):
        assert 1e-9 < pace.evaluation_s < 1
        assert 1e-9 < pace.train_s < 1


def test_the_name_of_a_text_and_what_stands_between_documents_are_kept_in_any_script() -> None:
    """With a name beyond 16 bits, a run whose config is chosen ended with a YAML error."""
    data = {"source": ["texts/\N{CAT FACE}.txt", "b.txt"], "separator": "\n\N{SNOWMAN}\x85"}
    base = Config.model_validate({"data": data})
    assert planned(1_000_000, 5, base).config.data == base.data


@pytest.mark.parametrize("max_steps", [3, 40, 10_000])
@pytest.mark.parametrize("characters", [2_400, 1_000_000])
def test_a_plan_has_no_more_steps_than_are_allowed(max_steps: int, characters: int) -> None:
    """The plan was of the steps that fit, and so was its warmup, whatever train.max_steps."""
    base = Config.model_validate({"train": {"max_steps": max_steps}})
    config = planned(characters, 5, base).config
    assert (config.train.max_steps or max_steps + 1) <= max_steps
    assert config.train.warmup_steps <= config.train.steps <= max(9, max_steps)


def test_of_one_character_repeated_nothing_but_a_loss_of_0_is_predicted() -> None:
    """A million of it ended with a ZeroDivisionError."""
    for minutes in (0.2, 5):
        chosen = planned(1_000_000, minutes, V=1, pilot_loss=0.0, pilot_gain=0.0, pilot_gap=0.0)
        assert chosen.val_loss == 0.0


def test_a_small_model_that_is_asked_for_is_trained_and_nothing_predicted() -> None:
    """With C 8, it made nine steps."""
    base = Config.model_validate({"model": {"C": 8, "n_layer": 1, "n_head": 1}})
    chosen = planned(1_000_000, 5, base)
    assert chosen.passes > 5
    assert "no prediction: the model is too small (C 48 needed)" in chosen.describe()


@pytest.mark.parametrize("batch_size", [1, 64])
@pytest.mark.parametrize("characters", [20_000, 1_000_000])
def test_a_batch_size_that_is_set_changes_how_many_steps_are_made(
    batch_size: int, characters: int
) -> None:
    """The steps were those of the batch that would have been chosen."""
    base = Config.model_validate({"train": {"batch_size": batch_size}})
    kept, free = planned(characters, 2, base), planned(characters, 2)
    assert kept.config.train.batch_size == batch_size
    assert kept.passes == pytest.approx(free.passes, rel=0.25)


def test_what_fits_some_shapes_alone_is_kept_and_the_others_are_left_out() -> None:
    """32 heads were refused, as C 96 has no room for them."""
    base = Config.model_validate({"model": {"n_head": 32}})
    model = planned(1_000_000, 2, base).config.model
    assert model.n_head == 32
    assert model.head_size % 2 == 0


def test_a_longer_warmup_than_would_be_chosen_makes_a_run_as_long() -> None:
    """500 steps of it were refused, as more than those of a first guess."""
    base = Config.model_validate({"train": {"warmup_steps": 500, "steps": 500}})
    train = planned(1_000_000, 0.1, base).config.train
    assert (train.warmup_steps, train.steps) == (500, 500)


def test_minutes_beyond_any_life_have_the_most_steps_that_a_config_can() -> None:
    """A thousand million minutes ended with a pydantic error; of batches of 1, a million did."""
    assert planned(1_000_000_000, 1e9).config.train.steps <= 10**9
    small = Config.model_validate({"train": {"batch_size": 1}, "model": {"T": 16}})
    assert planned(1_000_000_000, 1e6, small).config.train.steps <= 10**9


def test_the_seconds_of_a_plan_that_ends_early_are_its_own() -> None:
    """3 % of the minutes were added, for evaluations, however short the run was."""
    chosen = [planned(20_000, minutes) for minutes in (30, 60)]
    assert all(each.ends_early for each in chosen)
    assert chosen[1].seconds == pytest.approx(chosen[0].seconds, rel=0.01)


def test_of_bytes_the_loss_is_predicted_per_character() -> None:
    """It was that of a byte, and said to be that of a character."""
    corpus = corpus_of(3_000_000)
    in_bytes = replace(
        corpus,
        vocabulary=BYTES,
        characters=1_000_000,
        val_characters=100_000,
        val_bytes=300_000,
        val_first_bytes=3,
    )
    text = replace(TEXT, train_ids=len(corpus.train))
    of_bytes, of_characters = (
        plan(each, 5, difficulty=text, speed=fake_speed(65)) for each in (in_bytes, corpus)
    )
    assert of_bytes.val_loss == pytest.approx(3 * of_characters.val_loss, rel=1e-3)
    assert all("bytes" in line for line in of_bytes.describe()[1:2])


@pytest.mark.parametrize("steps", [0, 7, 20])
def test_choosing_stops_when_it_is_asked_to(steps: int) -> None:
    """Ctrl-C was heard only when all was chosen, and left a run of no steps behind."""
    corpus = letters(np.random.default_rng(7).integers(len(LETTERS), size=30_000))
    answers = iter([*(steps * [False]), True])
    with pytest.raises(Interrupted, match="nothing is written"):
        plan(corpus, 0.1, ALONE, should_stop=lambda: next(answers))


def test_four_ranks_plan_the_run_of_a_machine_four_times_as_fast() -> None:
    """Bug: under torchrun, the run was planned for one process."""
    corpus = corpus_of(20_000_000)
    text = replace(TEXT, train_ids=len(corpus.train))

    def of(ranks: Ranks, train_s: float) -> Plan:
        base = Config.model_validate({"threads": 1})
        speed = speed_at(train_s, train_s / 3)
        return plan(corpus, 5, base, difficulty=text, speed=speed, ranks=ranks)

    alone, quick, together = of(SINGLE, 8e-5), of(SINGLE, 2e-5), of(Ranks(size=4), 8e-5)
    assert alone.config != quick.config == together.config


def test_with_ranks_a_rank_measures_its_share_of_a_batch() -> None:
    """On a GPU, small batches are slower per character than large ones."""
    measured: list[Config] = []

    def measure(configs: list[Config]) -> list[Pace]:
        measured.extend(configs)
        return [Pace(1e-5, 1e-6) for _ in configs]

    text = replace(TEXT, train_ids=18_000_000)
    chosen = plan(
        corpus_of(20_000_000),
        5,
        Config.model_validate({"train": {"batch_size": 30}}),
        difficulty=text,
        speed=Speed(65, measure),
        ranks=Ranks(size=4),
    )
    *models, _ = measured  # without the pilot
    assert {config.train.batch_size for config in models[:2]} == {8}
    assert chosen.config.train.batch_size == 30


@pytest.mark.parametrize(
    ("text", "as_bytes"),
    [
        ("".join(map(chr, range(0x4E00, 0x5200))) + PANGRAM * 997, True),  # nearly all ASCII
        ("".join(chr(0x4E00 + i * i % 1021) for i in range(9973)), False),
        ("".join(chr(0x4E00 + i // 7) * 3 for i in range(9973)), True),  # new ones until the end
        (PANGRAM * 499, False),
    ],
)
def test_a_text_is_read_as_bytes_where_these_are_easier_to_predict(
    tmp_path: Path, text: str, as_bytes: bool
) -> None:
    """Bug: a text whose val split had new scripts cost 3.8 nats per character, and zpaq 1.9."""
    path = tmp_path / "text.txt"
    path.write_text(text, "utf-8")
    assert reads_better_as_bytes(load_corpus(open_source(str(path)))) == as_bytes


def test_on_an_accelerator_the_cost_of_launching_kernels_is_not_that_of_operations() -> None:
    """Bug: the paces of two small models, which only launched kernels, were extrapolated."""

    def step_s(config: Config) -> float:
        model, train = config.model, config.train
        operations = operations_per_character(model, 65) * train.batch_size * model.T
        return 7e-4 + 5e-4 * model.n_layer + operations / 2e14

    def measure(configs: list[Config]) -> list[Pace]:
        in_step = [each.train.batch_size * each.model.T for each in configs]
        return [Pace(step_s(each) / n, 1e-7) for each, n in zip(configs, in_step, strict=True)]

    speed = Speed(65, measure, launches_kernels=True)
    base = Config()
    assert planned(100_000_000, 5, base, speed).seconds <= 300
    for shape in ((2, 64), (3, 96), (6, 256), (12, 768)):
        for batch_size in (16, 256):
            config = settings_for(Choice(*shape, 10**8), 512, batch_size)
            predicted = speed.predict(config).train_s * 512 * batch_size
            assert predicted == pytest.approx(step_s(config), rel=0.01)


def test_on_an_accelerator_a_model_whose_depth_is_set_has_a_pace_above_zero() -> None:
    """Layers and the constant cost cannot be told apart: the fit has many solutions."""
    speed = Speed(65, lambda configs: [Pace(1e-6, 1e-7) for _ in configs], launches_kernels=True)
    base = Config.model_validate({"model": {"n_layer": 3, "C": 96}})
    chosen = planned(1_000_000, 5, base, speed)
    assert speed.predict(chosen.config).train_s > 1e-7


def on_gpu(characters: int, times: float, minutes: float = 5, base: Config | None = None) -> Plan:
    """The plan for a GPU that is `times` as fast as two cores, in `minutes`."""
    speed = replace(fake_speed(65, times), launches_kernels=True)
    return planned(characters, minutes, base, speed)


@pytest.mark.parametrize("times", [100, 1000])
def test_a_fast_machine_trains_a_compute_optimal_model_on_a_large_text(times: float) -> None:
    """Bug: the law chose 1.3 to 4.9 million parameters, far outside of the runs it was fitted on.

    An expert would choose about 20 characters per parameter (Hoffmann et al. 2022).
    """
    chosen = on_gpu(1_000_000_000, times)
    model = chosen.config.model
    characters = chosen.passes * 900_000_000
    assert (model.ensemble, model.T) == (1, 1024)
    assert 5 <= characters / chosen.parameters <= 20
    assert chosen.parameters >= 6_000_000
    assert "extrapolated" in chosen.describe()[-1]
    assert chosen.uncertainty > 2 * 0.03 * chosen.val_loss


def test_a_fast_machine_trains_many_members_on_a_text_of_a_megabyte() -> None:
    """Bug: the run ended after 18 to 59 seconds of five minutes, with eight members."""
    chosen = on_gpu(1_115_394, times=300)
    assert 16 <= chosen.config.model.ensemble <= 32
    assert chosen.seconds > 100
    assert "extrapolated" not in chosen.describe()[-1]


def test_a_fast_machine_passes_over_a_text_of_20_mb_at_most_eight_times() -> None:
    chosen = on_gpu(20_000_000, times=300)
    assert 2 <= chosen.passes <= 8
    assert 2 <= chosen.config.model.ensemble <= 8


def test_a_small_model_that_is_asked_for_is_trained_for_all_of_the_time() -> None:
    """Only the law is limited to a compute-optimal number of characters."""
    base = Config.model_validate({"model": {"n_layer": 2, "C": 64, "ensemble": 1}})
    assert on_gpu(1_000_000_000, 100, minutes=10, base=base).seconds > 500
