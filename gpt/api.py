"""What a notebook and the commands both call: train a model, load a run, use what it learnt.

    import gpt

    outcome = gpt.train("quickstart", text="my.txt", settings={"train.steps": 200})
    model = gpt.load(outcome.run)
    for chunk in model.generate("To be", length=300, seed=1):
        print(chunk, end="")

Importing it loads no torch, and neither does sampling on a CPU. Nothing here installs a signal
handler or needs the main thread.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.distributed import first_on_each_machine, from_main, joined
from gpt.errors import UsageError
from gpt.text.rules import normalized
from gpt.torchrun import begin_training, check_alone

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.config.schema import Config, DataConfig
    from gpt.evaluation.analysis import AttentionAnalysis
    from gpt.evaluation.attention import Attention
    from gpt.evaluation.text_report import TextReport
    from gpt.model.ensemble import LanguageModel
    from gpt.recipe.plan import Plan
    from gpt.recipe.range_test import RangeTest
    from gpt.recipe.sweep import Sweep
    from gpt.runs.checkpoint import CheckpointData
    from gpt.sampling.stopping import Chunk
    from gpt.text.corpus import Corpus
    from gpt.text.documents import Source
    from gpt.text.vocabulary import Vocabulary
    from gpt.training.dry_run import Estimate
    from gpt.training.trainer import Outcome

log = logging.getLogger(__name__)

DEFAULT_MINUTES = 5.0  # of a run whose config is chosen for its text

Settings = Mapping[str, Any]
Text = str | Path


class Model:
    """The trained model of a run: `generate`, `logits`, `loss` and `attention` of any text.

    Several can be loaded at once. torch is loaded by the first call that needs it.
    """

    def __init__(self, run: Path, checkpoint: "CheckpointData", device: str) -> None:
        self.run, self.checkpoint, self.device = run, checkpoint, device
        self.step, self.config = checkpoint.step, checkpoint.config
        self.vocabulary = checkpoint.vocabulary
        self._told = set[str]()  # characters that share the unknown id

    def __repr__(self) -> str:
        return f"<gpt.Model {self.run.name}, step {self.step}>"

    @cached_property
    def module(self) -> "LanguageModel":
        """The model as a torch module in evaluation mode, on the device."""
        from gpt.device import select_device
        from gpt.runs.model import load_model

        return load_model(self.checkpoint, select_device(self.device))

    def summary(self) -> str:
        """The run's folder, the step and the val loss, if it is known, in a few words."""
        val_loss = self.checkpoint.val_loss
        known = "" if val_loss is None else f", val loss {val_loss:.4f}"
        known += " per byte" if known and self.vocabulary.is_bytes else ""
        return f"{self.run}, step {self.step}{known}"

    def prepare(self, prompt: str, *, drop_unknown: bool = False) -> str:
        """The prompt as the model takes it, by the rules that the training text was read by.

        Where the vocabulary has an id for all characters that it lacks, a notice lists those of the
        prompt, each once.

        Raises:
            UsageError: it has characters without an id, unless they are to be dropped.
        """
        from gpt.sampling.prompt import check_prompt, listed

        prompt = normalized(prompt, self.config.data)
        prompt = check_prompt(prompt, self.vocabulary, drop_unknown=drop_unknown)
        if new := [c for c in self.vocabulary.outside(prompt) if c not in self._told]:
            self._told.update(new)
            log.warning(
                "characters outside the model's vocabulary, all of them one to it: %s", listed(new)
            )
        return prompt

    def generate(self, prompt: str = "", **options: Any) -> Iterator[str]:
        """Yield the text that the model writes after the prompt, as it comes.

        The options are those of `sample`.
        """
        for chunk in self.sample([prompt], **options):
            yield chunk.text

    def sample(
        self,
        prompts: Sequence[str],
        *,
        num_samples: int = 1,
        length: int | None = None,
        seed: int | None = None,
        stops: Sequence[str] = (),
        until_stop: bool = False,
        drop_unknown: bool = False,
        **rules: float | None,
    ) -> Iterator["Chunk"]:
        """Yield chunks of `num_samples` samples of each prompt as they are generated, side by side.

        Args:
            length: characters of a sample; default `sample.length` of the run's config.
            seed: the draws follow from it, and from each sample's index; default the run's seed.
            stops: strings that end a sample, and are not part of it.
            until_stop: continue until a stop string, however long that takes, or to `length`.
            drop_unknown: whether to leave out characters that the vocabulary lacks.
            rules: temperature, top_k, top_p, min_p, repetition_penalty, context_after_overflow;
                None is the config's.

        Raises:
            UsageError: a prompt or stop string has characters that the vocabulary lacks; or a rule
                or the length has a value that it cannot have.
            DeviceError: there is no such device.
            OutOfMemory: so many samples would take more memory than is free.
        """
        from gpt.sampling.memory import check_sampling_memory
        from gpt.sampling.parallel import generate_samples
        from gpt.sampling.prompt import check_known, encode_prompt
        from gpt.sampling.sampler import SamplingRules

        defaults = self.config.sample
        prompts = [self.prepare(prompt, drop_unknown=drop_unknown) for prompt in prompts]
        stops = [normalized(text, self.config.data) for text in stops]
        for text in stops:
            advice = "a stop string with them would never come"
            check_known(text, self.vocabulary, advice, shared=False)
        encoded = [encode_prompt(prompt, self.vocabulary) for prompt in prompts]
        length = defaults.length if length is None and not until_stop else length
        B, longest = num_samples * len(encoded), max(map(len, encoded), default=0)
        check_sampling_memory(self.checkpoint, self.device, B, longest, length)
        return generate_samples(
            self.checkpoint,
            self.device,
            [ids for ids in encoded for _ in range(num_samples)],
            indices=[index for _ in encoded for index in range(num_samples)],
            length=length,
            seed=self.config.seed if seed is None else seed,
            stops=stops,
            rules=SamplingRules.from_config(defaults, length=length, **rules),
        )

    def logits(self, text: str) -> "Tensor":
        """(T, V): row t predicts the character after the text's character t, counted from 0.

        With `data.vocabulary: bytes`, the byte after byte t of its UTF-8.

        Raises:
            UsageError: the text is empty, longer than `model.T`, or has unknown characters.
        """
        import torch

        from gpt.text.batches import to_torch

        ids = to_torch(self.vocabulary.encode(self.prepare(text)))
        if not 0 < len(ids) <= self.config.model.T:
            raise UsageError(
                f"expected a text of 1 to model.T = {self.config.model.T} "
                f"{self.vocabulary.unit}s, got {len(ids)}"
            )
        with torch.inference_mode():
            logits: Tensor = self.module(ids[None].to(self._torch_device))[0]
        return logits.float().cpu()

    def loss(self, text: str) -> float:
        """The model's loss on a text of any length, in nats per character, but for the first.

        The text is cut into consecutive windows of `model.T` ids, as for `val_loss`.

        Raises:
            UsageError: the text has fewer than two characters, or unknown ones.
        """
        from gpt.evaluation.loss import evaluate
        from gpt.evaluation.units import scored_ids, units_of

        text = self.prepare(text)
        if len(text) < 2:
            raise UsageError(f"expected a text of at least 2 characters, got {len(text)}")
        loss = evaluate(self.module, scored_ids(text, self.vocabulary), self.vocabulary)
        return units_of(text, self.vocabulary).per_character(loss)

    def attention(self, text: str) -> "Attention":
        """The attention weights (n_layer, H, T, T) of a text, and what the model predicts (T, V).

        Raises:
            UsageError: the text is longer than `model.T`, or has unknown characters.
        """
        from gpt.evaluation.attention import attend_text

        return attend_text(self.module, self.vocabulary, self.prepare(text))

    def attention_analysis(self, text: str) -> "AttentionAnalysis":
        """The attention, and what it does on the text: the loss without each head, and more.

        Raises:
            UsageError: as `attention`.
        """
        from gpt.evaluation.analysis import analyze_text

        return analyze_text(self.module, self.vocabulary, self.prepare(text))

    @property
    def _torch_device(self) -> Any:
        return next(self.module.parameters()).device


def load(
    run: str | Path | None = None, checkpoint: str | int = "best", device: str = "auto"
) -> Model:
    """The model of a run: its folder, its name under `runs/`, or by default the newest run.

    Args:
        run: the run.
        checkpoint: `best` (the lowest val loss), `last` or a step.
        device: auto, cpu, cuda, cuda:N or mps: any, whatever it was trained on.

    Raises:
        UsageError: there is no such run.
        CheckpointError: the checkpoint is missing, damaged or not one of ours.
    """
    from gpt.runs.checkpoint import read_checkpoint
    from gpt.runs.folder import find_run

    folder = find_run(None if run is None else str(run))
    return Model(folder, read_checkpoint(folder, checkpoint), device)


def train(
    config: "Config | str | Path | None" = None,
    *,
    text: Text | Sequence[Text] | None = None,
    minutes: float | None = None,
    settings: Settings | Sequence[str] = (),
    init_from: str | Path | None = None,
    run_dir: str | Path | None = None,
    overwrite: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> "Outcome":
    """Train a model on a text in a new run folder.

    Args:
        config: a Config, the path of a YAML file, or the name of a shipped one, such as quickstart.
            Without one, what `settings` leave open is chosen for the text and the `minutes`, by
            default 5; but with `train.steps`, `train.init_from` or `train.distill` it has its
            defaults.
        text: the text, or several, in place of `data.source`: a named one, a file, a folder, a glob
            or `-` for standard input.
        minutes: how long all of it may take, in place of `train.steps`, also where a config has
            `train.plans`.
        settings: changes, as `{"train.steps": 500}` or `["train.steps=500"]`.
        init_from: the run to fine-tune, in place of `train.init_from`: training begins with the
            weights of its best checkpoint, and its shape and recipe are the defaults.
        run_dir: the run's folder; default `runs/NAME`, after the text if it is given, else after
            the config; with a number if that is taken.
        overwrite: replace the run that is in the folder.
        should_stop: asked after each step and, from any thread, before each window of an
            evaluation; once it returns True, the state is saved and Interrupted raised.
        on_event: called with a dict of what happens; `gpt.training.trainer.train` lists them.
        clock: the seconds that are used of the minutes; by default those since this call.

    Started by torchrun, its processes train one model together, and all have the Outcome; where it
    restarted them, they resume the run that they began.

    Raises:
        ConfigError: the file, a key or a value is wrong.
        UsageError: the run's folder is in use, or there is no run to fine-tune.
        TextError: the text cannot be read.
        Interrupted: `should_stop` returned True, and the state is saved.
        TrainingError: training cannot continue; the run's checkpoints are as they were.
    """
    clock = clock or _since_now()
    settled = _resolve_new(config, text, settings, minutes, init_from)

    from gpt.runs.folder import RUNS, check_free, has_checkpoint

    run = Path(run_dir) if run_dir else RUNS / name_of(config, text)
    numbered = not (run_dir or overwrite)
    with joined():
        before = from_main(begin_training)
        if "outcome" in before:
            return _outcome(before)
        if begun := before.get("run"):
            if from_main(has_checkpoint, Path(begun)):
                return resume(begun, should_stop=should_stop, on_event=on_event, clock=clock)
            run, numbered, overwrite = Path(begun), False, True
        if not numbered:
            from_main(partial(check_free, overwrite=overwrite), run)
        settled, corpus = _ready(config, settled, clock)

        from gpt.training.trainer import train as train_model

        return train_model(
            settled,
            corpus,
            run,
            overwrite=overwrite,
            numbered=numbered,
            should_stop=should_stop,
            on_event=on_event,
            clock=clock,
        )


def resume(
    run: str | Path | None = None,
    *,
    text: Text | Sequence[Text] | None = None,
    minutes: float | None = None,
    settings: Settings | Sequence[str] = (),
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> "Outcome":
    """Resume a run from its last checkpoint, with the run's config but for those settings.

    `minutes` are those of the whole run, over all resumes, in place of what it had.
    `should_stop`, `on_event` and `clock` are those of `train`.

    Raises:
        ConfigError: a setting would make it another run.
        UsageError: there is no such run, its text changed, or it has no steps left.
        CheckpointError: no checkpoint of the run can be read.
    """
    from gpt.runs.folder import find_run
    from gpt.runs.recovery import summary_to_resume

    clock = clock or _since_now()
    with joined():
        before = from_main(begin_training)
        if "outcome" in before:
            return _outcome(before)
        run = before.get("run", run)  # the newest may be another one by now
        folder = from_main(find_run, None if run is None else str(run))
        newest = from_main(summary_to_resume, folder)
        settled = _resolve(newest.config, text, settings, minutes, plans_again=False)
        settled, corpus = _corpus(settled, newest.vocabulary)

        from gpt.training.trainer import train as train_model

        return train_model(
            settled,
            corpus,
            folder,
            resume=True,
            should_stop=should_stop,
            on_event=on_event,
            clock=clock,
        )


def sweep(
    config: "Config | str | Path | None" = None,
    *,
    text: Text | Sequence[Text] | None = None,
    minutes: float | None = None,
    settings: Settings | Sequence[str] = (),
    seeds: int | None = None,
    jobs: int | None = None,
    init_from: str | Path | None = None,
    run_dir: str | Path | None = None,
    overwrite: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] | None = None,
) -> "Sweep":
    """Train a run for each combination of several values, and compare their val losses.

    If the folder holds that very sweep already, it is resumed, and what is finished is not trained
    again. A run that fails does not end the others.

    Args:
        settings: as for `train`, but a key that takes one value may have a list of them, as
            `{"train.learning_rate": [1e-3, 2e-3]}` or `["train.learning_rate=1e-3,2e-3"]`.
        seeds: train each combination with so many seeds, from the config's on.
        jobs: how many runs are trained at once, as processes; the first time it decides how many
            threads each has: with `threads: auto` as many as torch takes here, divided by it.
        run_dir: the folder of the sweep; default `runs/NAME-sweep`.
        config, text, minutes, init_from, overwrite, should_stop: see `train`. Each run has so many
            minutes.
        on_event: see `train`; each event has also `run`, the name of its run.

    Raises:
        ConfigError, TextError: see `train`; nothing was trained.
        UsageError: the folder holds another sweep, or something else.
        Interrupted: `should_stop` returned True, and what was trained is saved.
    """
    from gpt.recipe.grid import combinations, names_of, with_seeds
    from gpt.runs.folder import RUNS

    if jobs is not None and jobs < 1:
        raise UsageError(f"expected at least one job, got {jobs}")
    if seeds is not None and seeds < 1:
        raise UsageError(f"expected at least one seed, got {seeds}")

    def resolved(changes: list[str]) -> "Config":
        return _resolve_new(config, text, changes, minutes, init_from)

    combined = combinations(_as_changes(settings))
    first = resolved(combined[0].changes).seed
    combined = [one for each in combined for one in with_seeds(each, first, seeds)]
    configs = _with_one_input([resolved(each.changes) for each in combined])

    from gpt.recipe.sweep import run_sweep
    from gpt.recipe.sweep_plan import Asked

    asked = [
        Asked(name, each.values, settled)
        for name, each, settled in zip(names_of(combined), combined, configs, strict=True)
    ]
    return run_sweep(
        Path(run_dir) if run_dir else RUNS / f"{name_of(config, text)}-sweep",
        asked,
        choose=lambda one: _chosen(one, _since_now())[0] if _is_open(config, one) else one,
        load=lambda one, vocabulary: _corpus(one, vocabulary)[1],
        jobs=jobs,
        overwrite=overwrite,
        should_stop=should_stop,
        on_event=on_event or (lambda event: None),
    )


def is_sweep(settings: Settings | Sequence[str]) -> bool:
    """Whether a key that takes one value has several. Raises ConfigError, see `sweep`."""
    from gpt.recipe.grid import combinations

    return bool(combinations(_as_changes(settings))[0].values)


def resume_sweep(
    folder: str | Path,
    *,
    jobs: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] | None = None,
) -> "Sweep":
    """Train the runs of a sweep that are not finished, and compare all; see `sweep`.

    Raises:
        UsageError: there is no such sweep, or its text has changed.
    """
    from gpt.recipe.sweep import run_sweep
    from gpt.runs.folder import find_sweep

    if (found := find_sweep(str(folder))) is None:
        raise UsageError(f"{folder}: expected the folder of a sweep, or its name in runs/")
    return run_sweep(
        found,
        None,
        choose=lambda one: one,
        load=lambda one, vocabulary: _corpus(one, vocabulary)[1],
        jobs=jobs,
        should_stop=should_stop,
        on_event=on_event or (lambda event: None),
    )


def estimate(
    config: "Config | str | Path | None" = None,
    *,
    text: Text | Sequence[Text] | None = None,
    minutes: float | None = None,
    settings: Settings | Sequence[str] = (),
    init_from: str | Path | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple["Config", "Estimate"]:
    """The resolved config, and what training by it would take: parameters, memory, time.

    For the arguments see `train`.

    Raises:
        ConfigError, TextError: see `train`.
        UsageError: torchrun started several processes.
    """
    check_alone("a dry run")
    clock = clock or _since_now()
    settled = _resolve_new(config, text, settings, minutes, init_from)
    settled, corpus = _ready(config, settled, clock)

    from gpt.training.dry_run import estimate as probe
    from gpt.training.time_budget import first_plan

    settled = first_plan(settled, corpus, clock)
    return settled, probe(settled, corpus)


def find_learning_rate(
    config: "Config | str | Path | None" = None,
    *,
    text: Text | Sequence[Text] | None = None,
    minutes: float | None = None,
    settings: Settings | Sequence[str] = (),
    init_from: str | Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "RangeTest":
    """Which learning rates suit a config and a text: a range test, which leaves no run.

    For the arguments see `train`.

    Raises:
        ConfigError, TextError: see `train`.
        TrainingError: the loss does not fall, not even at a hundredth of the config's rates.
        Interrupted: `should_stop` returned True.
    """
    check_alone("a range test")
    clock = _since_now()
    settled = _resolve_new(config, text, settings, minutes, init_from)
    settled, corpus = _ready(config, settled, clock)

    from gpt.recipe.range_test import find_learning_rate as test_range

    return test_range(settled, corpus, should_stop)


def describe(text: Text | Sequence[Text], settings: Settings | Sequence[str] = ()) -> "TextReport":
    """What is in a text, as training would read it: size, characters, damage, what to beat.

    Args:
        text: as for `train`.
        settings: changes of `data`, as for `train`.

    Raises:
        ConfigError, TextError: see `train`.
    """
    from gpt.evaluation.text_report import describe_text

    config = _with_kept_input(_resolve(None, text, settings))
    sources = _sources(config.data)
    corpus = in_characters = _prepared(config, sources)
    plain = config.data.model_copy(update={"vocabulary": "characters", "max_vocabulary": None})
    if plain != config.data:
        in_characters = _prepared(config.model_copy(update={"data": plain}), sources)
    return describe_text(sources, config.data, corpus, in_characters)


def _outcome(before: dict[str, Any]) -> "Outcome":
    """That of a training which ended before torchrun restarted its processes."""
    from gpt.training.trainer import Outcome

    return Outcome(**before["outcome"])


def _resolve_new(
    config: "Config | str | Path | None",
    text: Text | Sequence[Text] | None,
    settings: Settings | Sequence[str],
    minutes: float | None,
    init_from: str | Path | None,
) -> "Config":
    """The config of a new run: what is not set has its default, or is the run's to fine-tune."""
    from gpt.runs.fine_tuning import check_same_model, settings_to_inherit

    settled = _resolve(
        config,
        text,
        settings,
        minutes,
        init_from=None if init_from is None else str(init_from),
        inherit=lambda run: settings_to_inherit(_summary(run)),
    )
    if settled.train.init_from is not None:
        check_same_model(_summary(settled.train.init_from), settled)
    return settled


def _resolve(
    config: "Config | str | Path | None",
    text: Text | Sequence[Text] | None,
    settings: Settings | Sequence[str],
    minutes: float | None = None,
    *,
    plans_again: bool = True,
    **fine_tuning: Any,
) -> "Config":
    """The config with these settings; one for so many minutes makes its own plans, if it may."""
    from gpt.config.load import load_config

    changes = _as_changes(settings)
    if minutes is not None:
        if any(change.startswith("train.steps=") for change in changes):
            raise UsageError(
                f"expected either --minutes or train.steps, got both: as many steps as fit into "
                f"{minutes:g} minutes are trained"
            )
        changes += [f"train.minutes={minutes}", *(["train.plans=null"] if plans_again else [])]
    texts = [text] if isinstance(text, str | Path) else text or []
    return load_config(config, changes, [str(name) for name in texts] or None, **fine_tuning)


def _as_changes(settings: Settings | Sequence[str]) -> list[str]:
    """`section.key=value` of each setting."""
    if isinstance(settings, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return [settings] if isinstance(settings, str) else [*settings]


def _since_now() -> Callable[[], float]:
    """A clock: seconds since this call."""
    began = time.perf_counter()
    return lambda: time.perf_counter() - began


def name_of(config: "Config | str | Path | None", text: Text | Sequence[Text] | None) -> str:
    """The name of a run: after the first text, if one is given (`neko` of `texts/neko.txt`).

    Else after the config.
    """
    first = text if isinstance(text, str | Path) else text[0] if text else None
    named = first or (config if isinstance(config, str | Path) else "")
    if named == "-":
        return "stdin"
    return re.sub(r"[^\w.-]+", "-", Path(named).stem).strip("-.") or "run"


def _corpus(config: "Config", resumed: "Vocabulary | None" = None) -> tuple["Config", "Corpus"]:
    """The text, and the config that names where it is found again, if it is standard input.

    A run that is resumed has what another run lent it, its vocabulary.
    """
    config = _with_kept_input(config)
    corpus = _prepared(config, _sources(config.data), resumed)
    corpus.check_fits(config.model.T)
    return config, corpus


def _ready(
    given: "Config | str | Path | None", settled: "Config", clock: Callable[[], float]
) -> tuple["Config", "Corpus"]:
    """The text, and the config to train by: chosen for it, where that is left to us."""
    return _chosen(settled, clock) if _is_open(given, settled) else _corpus(settled)


def _is_open(given: "Config | str | Path | None", settled: "Config") -> bool:
    """Whether how a new run trains is left to us."""
    train = settled.train
    says_how = {"steps", "init_from", "distill"} & train.model_fields_set or train.plans
    return given is None and not says_how


def _chosen(config: "Config", clock: Callable[[], float]) -> tuple["Config", "Corpus"]:
    """The config with all that it leaves open chosen for its text and time; and the text."""
    from gpt.config.load import load_config

    config = _with_kept_input(config)
    sources = _sources(config.data)
    corpus = _prepared(config, sources)
    minutes = config.train.minutes or DEFAULT_MINUTES
    best = from_main(_planned, corpus, minutes, config, clock)
    for line in best.describe():
        log.info(line)
    chosen = best.config
    if best.ends_early:
        chosen = load_config(chosen, [f"train.max_steps={chosen.train.steps}"])
    if chosen.data != config.data:
        corpus = _prepared(chosen, sources)
    return chosen, corpus


def _planned(
    corpus: "Corpus", minutes: float, config: "Config", clock: Callable[[], float]
) -> "Plan":
    from gpt.recipe.plan import plan

    return plan(corpus, minutes, config, elapsed_s=clock())


def _with_kept_input(config: "Config") -> "Config":
    """The same, but what standard input holds is kept in the cache and named as it is there."""
    from gpt.text.standard_input import keep_input

    kept = from_main(keep_input, config.data)
    return config if kept is config.data else config.model_copy(update={"data": kept})


def _with_one_input(configs: "list[Config]") -> "list[Config]":
    """The same for configs that share their source: standard input is read once."""
    data = _with_kept_input(configs[0]).data
    if data is configs[0].data:
        return configs
    kept = {"source": data.source, "val_source": data.val_source}
    return [
        config.model_copy(update={"data": config.data.model_copy(update=kept)})
        for config in configs
    ]


def _sources(data: "DataConfig") -> "list[Source]":
    """The text, and that of val if it has one of its own."""
    from gpt.text.sources import open_source

    names = [data.source] if data.val_source is None else [data.source, data.val_source]
    return [open_source(name, data) for name in names]


def _prepared(
    config: "Config", sources: "list[Source]", resumed: "Vocabulary | None" = None
) -> "Corpus":
    from gpt.text.corpus import load_corpus

    data, fine_tuned = config.data, config.train.init_from
    lender = None if data.vocabulary in ("characters", "bytes") else data.vocabulary
    vocabulary = None
    if (run := fine_tuned or lender) is not None:
        vocabulary = resumed or _summary(run).vocabulary
    source, val_source = (*sources, None)[:2]
    assert source is not None
    with first_on_each_machine():
        return load_corpus(
            source,
            data,
            val_source=val_source,
            vocabulary=vocabulary,
            extends=fine_tuned is not None,
            seed=config.seed,
        )


def _summary(run: str) -> "CheckpointData":
    """The best checkpoint of a run, without its weights."""
    from gpt.runs.checkpoint import read_summary
    from gpt.runs.folder import find_run

    return read_summary(find_run(run))
