"""`gpt eval`: losses of a text with an interval, calibration, groups and simple predictors."""

import io
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import torch

from gpt import api
from gpt.evaluation import windows
from gpt.evaluation.intervals import BlockSums, mean_interval
from gpt.evaluation.loss import evaluate, evaluate_each
from gpt.evaluation.scored_text import score_text
from gpt.inspection.report_views import report_tables
from gpt.model.transformer import GPT
from gpt.text.corpus import Corpus
from tests.conftest import PANGRAM, small, trained
from tests.test_model import TEXTBOOK, config, gpt2_of, shaken
from tests.test_model import V as GPT2_VOCABULARY

KINDS = {
    "characters": {},
    "bytes": {"data.vocabulary": "bytes"},
    "ensemble": {"model.ensemble": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("eval")
    text = folder / "text.txt"
    text.write_text((PANGRAM + "né à 日本\n") * 31, "utf-8")
    return {
        kind: Path(api.train(small(), text=str(text), settings=changes, run_dir=folder / kind).run)
        for kind, changes in KINDS.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_it_equals_the_runs_last_evaluation(runs, kind, gpt):
    code, out, err = gpt("eval", runs[kind], "--checkpoint", "last", "--json")
    assert code == 0, err
    report = json.loads(out)
    last = json.loads((runs[kind] / "metrics.jsonl").read_text().splitlines()[-1])
    assert report["loss"] == pytest.approx(last["val_loss"], abs=1e-6)
    if kind == "bytes":
        per_character = last["val_loss_per_character"]
        assert report["loss_per_character"] == pytest.approx(per_character, abs=1e-6)
    low, high = report["interval"]["low"], report["interval"]["high"]
    assert low < report["loss_per_character"] < high


def test_a_uniform_model_scores_the_logarithm_of_v():
    uniform = GPT(small().model, 29)
    ids = np.random.default_rng(1).integers(29, size=211).astype(np.uint8)
    losses = np.concatenate([s.losses for s in score_text(uniform, ids)])
    assert len(losses) == 210
    np.testing.assert_allclose(losses, math.log(29), rtol=1e-6)


@torch.no_grad()
def test_it_equals_the_loss_of_hugging_faces_gpt2():
    model = shaken(GPT(config(**TEXTBOOK, C=35, head_size=7, value_size=7), GPT2_VOCABULARY))
    theirs, T = gpt2_of(model), model.config.T
    ids = np.random.default_rng(1).integers(GPT2_VOCABULARY, size=5 * T + 1).astype(np.uint8)
    losses = np.concatenate([s.losses for s in score_text(model, ids)])
    text = torch.from_numpy(ids.astype(np.int64))
    logits = theirs(text[:-1].view(5, T)).logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, text[1:]).item()
    assert losses.mean() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_probabilities_of_all_next_characters_sum_to_1(runs, kind):
    model = api.load(runs[kind])
    vocabulary, total = model.vocabulary, 0.0
    start = vocabulary.encode(PANGRAM[:11])
    for id_ in range(len(vocabulary)):
        ids = np.append(start, id_).astype(vocabulary.dtype)
        (scores,) = score_text(model.module, ids)
        total += math.exp(-scores.losses[-1])
    assert total == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.99])
def test_intervals_of_correlated_losses_contain_the_mean_as_often_as_they_say(correlation):
    """With 0.99, one from deviation / sqrt(n) would contain the mean in 16 % of the cases.

    Bug: the blocks left out the end of the text.
    """
    source, contained, texts, n = np.random.default_rng(1), 0, 200, 10_007
    for _ in range(texts):
        noise = source.exponential(size=n + 700) - 1
        losses = scipy.signal.lfilter([1], [1, -correlation], noise)[-n:]
        blocks = BlockSums(n)
        blocks.add(np.arange(n), losses.astype(np.float32))
        assert blocks.sums.sum() == pytest.approx(losses.sum(), abs=1e-3)
        interval = mean_interval(blocks.means())
        contained += interval.low < 0 < interval.high
    assert 0.9 <= contained / texts <= 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_the_groups_of_each_property_add_up_to_the_loss(runs, kind):
    by = ("position", "script", "character")
    report = api.evaluate(api.load(runs[kind]), by=by)
    for property_ in by:
        groups = report.groups[property_]
        assert sum(group.characters for group in groups) == report.characters
        nats = sum(group.characters * group.loss for group in groups) / report.characters
        assert nats == pytest.approx(report.loss_per_character, rel=1e-5)


def test_characters_are_sorted_by_their_part_of_the_loss(runs):
    """Bug: if the text had a digit, they were sorted by code point."""
    Path("other.txt").write_text("the 23 quick foxes jump over 13 lazy dogs; " * 7)
    report = api.evaluate(api.load(runs["bytes"]), "other.txt", by=["character"])
    [rows] = [rows for heading, rows, _ in report_tables(report) if heading[0] == "character"]
    parts = [int(row[1]) * float(row[2]) for row in rows]
    assert parts == sorted(parts, reverse=True)


def test_characters_outside_the_vocabulary_are_left_out_and_counted(runs, gpt):
    """Windows line ends are read as in training."""
    Path("known.txt").write_bytes(b"the quick\nfox")
    Path("more.txt").write_bytes("th§e quÜick\r\nfox".encode())
    model = api.load(runs["characters"])
    known, more = (api.evaluate(model, name) for name in ("known.txt", "more.txt"))
    assert (known.outside, more.outside) == (0, 2)
    assert (more.loss, more.bytes, more.characters) == (known.loss, 12, 12)
    code, out, _ = gpt("eval", runs["characters"], "more.txt")
    assert (code, "not in the model's vocabulary: 2 characters (14.29 %)" in out) == (0, True)


def test_ppmd_is_given_the_train_split(runs, gpt):
    """The compressed text can be decompressed, so its size is a code length."""
    ppmd = pytest.importorskip("pyppmd")
    whole = (PANGRAM + "né à 日本\n") * 31
    split = int(0.9 * len(whole))
    sizes = []
    for text in (whole[:split], whole[:split] + whole[split + 1 :]):  # the first is not scored
        encoder, content = ppmd.Ppmd7Encoder(8, 2**28), text.encode()
        written = encoder.encode(content) + encoder.flush()
        assert ppmd.Ppmd7Decoder(8, 2**28).decode(written, len(content)) == content
        sizes.append(len(written))
    code, out, err = gpt("eval", runs["characters"], "--json")
    assert code == 0, err
    report = json.loads(out)
    losses = {each["name"]: each["loss"] for each in report["references"]}
    assert {*losses} == {"unigram entropy", "Kneser-Ney", "xz -9", "PPMd"}
    assert [*losses.values()] == sorted(losses.values(), reverse=True)
    nats = 8 * math.log(2) * (sizes[1] - sizes[0]) / (len(whole) - split - 1)
    assert losses["PPMd"] == pytest.approx(nats, abs=0.1)  # whole bytes, of few characters


def test_another_text_may_be_utf8_and_no_table(elsewhere, monkeypatch):
    """Bug: a UTF-8 text was read in the run's cp1252 without notice, plain text as a table.

    Another bug: standard input was refused because of the run's data.column.
    """
    text = "the quick brown fox né "
    lines = "".join(f"{text}{i % 7}\n" for i in range(211))
    Path("train.csv").write_text(f"text\n{lines}", encoding="cp1252")
    settings = {"data__encoding": "cp1252", "data__column": "text"}
    api.train(small(**settings), text="train.csv", run_dir="r")
    model = api.load("r")
    Path("cp1252.txt").write_text(lines, encoding="cp1252")
    Path("utf8.txt").write_text(lines, encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    reports = [api.evaluate(model, name) for name in ("cp1252.txt", "utf8.txt", "-")]
    assert reports[0].loss == reports[1].loss == reports[2].loss
    assert [report.outside for report in reports] == [0, 0, 0]


def test_a_text_of_one_character_has_the_loss_0():
    """Bug: ZeroDivisionError, as the interval was scaled by the ratio of two losses."""
    report = api.evaluate(api.load(trained(Path(), "a" * 211)), "text.txt")
    assert report.loss == report.loss_per_character == 0
    assert report.interval and report.interval.low == report.interval.high == 0


def test_another_text_than_the_runs_is_not_taken_for_its_val_split(gpt):
    Path("a.txt").write_text(PANGRAM * 29)
    run = api.train(small(), text="a.txt", run_dir="run").run
    Path("a.txt").write_text(PANGRAM * 29 + "\u00ff" * 31)  # bug: ids of other characters
    code, out, err = gpt("eval", run)
    assert (code, out) == (2, "")
    assert "a.txt is not the text that" in err
    Path("a.txt").unlink()
    code, out, err = gpt("eval", run)
    assert (code, out) == (1, "")  # bug: was 2, unlike other missing texts
    assert "a.txt: no such text" in err and "to evaluate another text" in err


@pytest.fixture
def model(corpus: Corpus) -> GPT:
    model = GPT(small().model, len(corpus.vocabulary), torch.Generator().manual_seed(2))
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(3))
    return model


@pytest.mark.parametrize("characters", [1, 13, 97, 500, 10**9])
def test_a_part_of_the_text_is_scored_as_in_the_whole(corpus, model, monkeypatch, characters):
    """The oracle scores one window after another, and then selects evenly spread windows."""
    monkeypatch.setattr(windows, "EVAL_CHARACTERS", 3 * 13)
    T, ids = 13, corpus.ids[:501]
    losses = []
    for start in range(0, len(ids) - 1, T):
        window = torch.from_numpy(ids[start : start + T + 1].astype(np.int64))
        logits = model(window[None, :-1])[0].log_softmax(1)
        losses.append(-logits[torch.arange(len(window) - 1), window[1:]])
    if characters < 500:
        whole = losses[: 500 // T]
        n = max(1, characters // T)
        losses = [whole[math.floor(i * len(whole) / n)] for i in range(n)]
    expected = torch.cat(losses).mean().item()
    assert evaluate_each(model, ids, characters=characters)[0] == pytest.approx(expected, rel=1e-5)


def test_a_part_of_a_text_shorter_than_a_window_is_all_of_it(corpus, model):
    """Bug: windows were read beyond the end of the text."""
    for length in (5, 13, 14):
        ids = corpus.ids[:length]
        assert evaluate_each(model, ids, characters=3)[0] == evaluate(model, ids)


def test_an_evaluation_leaves_later_threads_as_many_threads(corpus, model, set_threads):
    """Bug: the number of threads that was set in the pool became the default of later threads.

    The pool of a training step had the same bug.
    """
    from concurrent.futures import ThreadPoolExecutor

    set_threads(3)
    evaluate(model, corpus.val)
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == 3
