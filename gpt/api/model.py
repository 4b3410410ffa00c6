"""A trained model: its samples, logits, losses and attention on any text."""

import logging
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from gpt.errors import UsageError
from gpt.text.rules import normalized

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.evaluation.analysis import AttentionAnalysis
    from gpt.evaluation.attention import Attention
    from gpt.model.ensemble import LanguageModel
    from gpt.runs.checkpoint import CheckpointData
    from gpt.sampling.stopping import Chunk

log = logging.getLogger(__name__)


class Model:
    """A trained model, as `gpt.load` returns it.

    Several models can be loaded at once, and several threads can use one model. torch is imported
    by the first call that needs it.

    Attributes:
        run: the folder of the run.
        step: the step of the checkpoint.
        config: the config of the run.
        vocabulary: the characters of the model; V is their number.
    """

    def __init__(self, run: Path, checkpoint: "CheckpointData", device: str) -> None:
        self.run, self.checkpoint, self.device = run, checkpoint, device
        self.step, self.config = checkpoint.step, checkpoint.config
        self.vocabulary = checkpoint.vocabulary
        self._reported = set[str]()  # notices, and characters that share the unknown id
        self._loading = Lock()

    def __repr__(self) -> str:
        return f"<gpt.Model {self.run.name}, step {self.step}>"

    @property
    def module(self) -> "LanguageModel":
        """The model as a torch module in evaluation mode, on the device."""
        with self._loading:
            return self._module

    @cached_property
    def _module(self) -> "LanguageModel":
        from gpt.device import default_modes, select_device
        from gpt.runs.model import load_model

        with default_modes():
            return load_model(self.checkpoint, select_device(self.device))

    def summary(self) -> str:
        """Return one line with the folder, the step and, if known, the val loss."""
        val_loss = self.checkpoint.val_loss
        known = "" if val_loss is None else f", val loss {val_loss:.4f}"
        known += " per byte" if known and self.vocabulary.is_bytes else ""
        return f"{self.run}, step {self.step}{known}"

    def prepare(
        self, prompt: str, *, drop_unknown: bool = False, advice: str = "leave them out"
    ) -> str:
        """Return the prompt in characters that the model has ids for.

        The prompt is normalised like the training text (`data.newlines`, `data.normalize`,
        `data.lowercase`). It is converted to NFC or NFD, and its typographic quotes to ASCII, if
        the vocabulary has only those; a notice says so. If an id stands for all characters outside
        the vocabulary, a notice lists the ones in the prompt.

        Args:
            prompt: any text.
            drop_unknown: drop characters that the vocabulary lacks; a notice counts them.
            advice: what the error message advises for characters without an id.

        Returns:
            The prepared prompt.

        Raises:
            UsageError: the prompt is not a str, or has characters without an id.
        """
        from gpt.sampling.prompt import check_known, listed_characters

        prompt = self._readable(prompt)
        if drop_unknown:
            if unknown := self.unknown_characters(prompt):
                log.warning(
                    "dropped %d of %d characters, which are outside the model's vocabulary: %s",
                    *(unknown.total(), len(prompt), listed_characters(unknown)),
                )
            return "".join(c for c in prompt if c not in unknown)
        check_known(prompt, self.vocabulary, advice)
        if new := [c for c in self.vocabulary.outside(prompt) if c not in self._reported]:
            self._reported.update(new)
            log.warning(
                "characters outside the model's vocabulary, all of them one to it: %s",
                listed_characters(new),
            )
        return prompt

    def unknown_characters(self, text: str) -> Counter[str]:
        """Count the characters of a text that are not in the vocabulary.

        Args:
            text: any text; it is read as `prepare` reads it.

        Returns:
            How often each of these characters occurs.

        Raises:
            UsageError: the text is not a str.
        """
        text = self._readable(text)
        outside = set(self.vocabulary.outside(text))
        return Counter(c for c in text if c in outside)

    def _readable(self, text: str) -> str:
        """Normalise a text like the training text, and replace unknown characters if possible."""
        from gpt.sampling.prompt import with_known_characters

        if not isinstance(text, str):
            raise UsageError(f"text: expected a str, got {text!r:.100}")
        text = normalized(text, self.config.data)
        text, notices = with_known_characters(text, self.vocabulary)
        for notice in notices:
            if notice not in self._reported:
                self._reported.add(notice)
                log.warning("%s", notice)
        return text

    def generate(
        self,
        prompt: str = "",
        *,
        length: int | None = None,
        seed: int | None = None,
        stops: str | Sequence[str] = (),
        until_stop: bool = False,
        ban: str = "",
        drop_unknown: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        context_after_overflow: int | None = None,
    ) -> Iterator[str]:
        """Return an iterator over the text after the prompt, which yields it as it is generated.

        `generate` writes one text; `sample` writes several, or several prompts' texts, at once.

        Args:
            prompt: the text to continue, taken literally.
            length: as for `sample`, like all arguments from here on.
            seed: the seed of the draws.
            stops: strings that end the text.
            until_stop: ignore `sample.length`.
            ban: characters that are never sampled.
            drop_unknown: drop characters that the vocabulary lacks.
            temperature: above 1 more random, below 1 more predictable.
            top_k: sample only from the `top_k` likeliest characters.
            top_p: sample only from the likeliest characters that make up this probability.
            min_p: drop characters less likely than `min_p` times the likeliest.
            presence_penalty: subtracted from the logits of recent characters.
            frequency_penalty: the same, for each time that they occur.
            context_after_overflow: characters of context left when a text outgrows `model.T`.

        Returns:
            An iterator over parts of the text.

        Raises:
            GPTError: see `sample`.
        """
        chunks = self.sample(
            [prompt],
            length=length,
            seed=seed,
            stops=stops,
            until_stop=until_stop,
            ban=ban,
            drop_unknown=drop_unknown,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            context_after_overflow=context_after_overflow,
        )
        return (chunk.text for chunk in chunks)

    def sample(
        self,
        prompts: str | Sequence[str],
        *,
        num_samples: int = 1,
        length: int | None = None,
        seed: int | None = None,
        stops: str | Sequence[str] = (),
        until_stop: bool = False,
        ban: str = "",
        drop_unknown: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        context_after_overflow: int | None = None,
    ) -> Iterator["Chunk"]:
        """Return an iterator over chunks of all samples, which are generated side by side.

        `Chunk.sample` counts the samples from 0: first all samples of the first prompt.
        `gpt.sampling.samples.collect` joins the chunks of each.

        Args:
            prompts: the texts to continue, taken literally; a str is one prompt.
            num_samples: samples of each prompt.
            length: characters of a sample; None: `sample.length` of the run's config.
            seed: the draws follow from it and from each sample's index; None: the run's seed.
            stops: strings that end a sample and are not part of it; a str is one stop string.
            until_stop: ignore `sample.length`: a sample ends only before a stop string, or at
                `length` if that is given.
            ban: characters that are never sampled.
            drop_unknown: drop characters of the prompts that the vocabulary lacks.
            temperature: above 1 more random, below 1 more predictable, 0: always the likeliest.
                For this and all that follow, None takes the value in the run's config.
            top_k: sample only from the `top_k` likeliest characters.
            top_p: sample only from the likeliest characters that make up this probability.
            min_p: drop characters less likely than `min_p` times the likeliest.
            presence_penalty: subtracted from the logit of each character among the last 64 of
                prompt and sample.
            frequency_penalty: subtracted from a character's logit for each time that it is among
                the last 64.
            context_after_overflow: characters of context left when a text outgrows `model.T`.

        Returns:
            An iterator over chunks: `text`, its `log_probabilities`, whether the sample `ended`.

        Raises:
            UsageError: an argument has a wrong type or value, or a text has characters that the
                vocabulary lacks.
            DeviceError: there is no such device.
            OutOfMemory: so many samples would take more memory than is free.
        """
        from gpt.sampling.memory import check_sampling_memory
        from gpt.sampling.parallel import generate_samples
        from gpt.sampling.prompt import banned_ids, check_known, encode_prompt
        from gpt.sampling.sampler import SamplingRules

        defaults = self.config.sample
        rules = SamplingRules.from_config(
            defaults,
            length=length,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            context_after_overflow=context_after_overflow,
        )
        num_samples = _whole_number("num_samples", num_samples, 1)
        seed = self.config.seed if seed is None else _whole_number("seed", seed, 0)
        stops = [self._readable(text) for text in _texts("stops", stops)]
        ban = "".join(_texts("ban", ban))
        for text in stops:
            advice = "it would never come, so leave it out"
            check_known(text, self.vocabulary, advice, what="the stop string", shared=False)
        if "" in stops:
            raise UsageError("stops: expected strings of at least one character, got ''")
        if until_stop and not stops:
            raise UsageError("until_stop: expected stops, which end the samples, got none")
        banned_ids(ban, self.vocabulary)  # raises UsageError
        advice = "leave them out, or pass drop_unknown=True"
        prompts = [
            self.prepare(prompt, drop_unknown=drop_unknown, advice=advice)
            for prompt in _texts("prompts", prompts)
        ]
        encoded = [encode_prompt(prompt, self.vocabulary) for prompt in prompts]
        length = defaults.length if length is None and not until_stop else length
        length = None if length is None else int(length)  # from a numpy scalar, say
        B, longest = num_samples * len(encoded), max(map(len, encoded), default=0)
        check_sampling_memory(self.checkpoint, self.device, B, longest, length)
        return generate_samples(
            self.checkpoint,
            self.device,
            [ids for ids in encoded for _ in range(num_samples)],
            indices=[index for _ in encoded for index in range(num_samples)],
            length=length,
            seed=seed,
            stops=stops,
            rules=rules,
            ban=ban,
        )

    def logits(self, text: str) -> "Tensor":
        """Compute the logits of the next character after each character of a text.

        Args:
            text: 1 to `model.T` characters; with `data.vocabulary: bytes`, bytes of UTF-8.

        Returns:
            float32 on the CPU, (T, V): row t predicts the character (or byte) after the one at t,
            counted from 0. The softmax of a row is a distribution.

        Raises:
            UsageError: the text is empty, longer than `model.T`, or has unknown characters.
        """
        import torch

        from gpt.device import default_modes
        from gpt.text.batches import to_torch

        ids = to_torch(self.vocabulary.encode(self.prepare(text)))
        if not 0 < len(ids) <= self.config.model.T:
            raise UsageError(
                f"expected a text of 1 to model.T = {self.config.model.T} "
                f"{self.vocabulary.unit}s, got {len(ids)}"
            )
        with default_modes(), torch.no_grad():  # inference tensors could not be used with autograd
            logits: Tensor = self.module(ids[None].to(self._torch_device))[0]
        return logits.float().cpu()

    def loss(self, text: str, *, drop_unknown: bool = False) -> float:
        """Return the mean loss of a text, as `val_loss` is: in consecutive windows of `model.T`.

        Args:
            text: at least 2 characters.
            drop_unknown: drop characters that the vocabulary lacks; a notice counts them, and
                `unknown_characters` returns the counts.

        Returns:
            Nats per character, over all characters but the first.

        Raises:
            UsageError: the text has fewer than two characters, or unknown ones.
        """
        from gpt.device import default_modes
        from gpt.evaluation.loss import evaluate
        from gpt.evaluation.units import scored_ids, units_of

        advice = "leave them out, or pass drop_unknown=True"
        text = self.prepare(text, drop_unknown=drop_unknown, advice=advice)
        if len(text) < 2:
            raise UsageError(f"expected a text of at least 2 characters, got {len(text)}")
        with default_modes():
            loss = evaluate(self.module, scored_ids(text, self.vocabulary), self.vocabulary)
        return units_of(text, self.vocabulary).per_character(loss)

    def val_text(self, characters: int) -> str:
        """Return the beginning of the run's val split.

        Args:
            characters: how many to return; fewer if the val split or `model.T` is shorter.

        Returns:
            The text, without characters that the model has no id for.

        Raises:
            GPTError: the text that the run was trained on can no longer be read.
        """
        from gpt.api.resolve import read_text

        _, corpus = read_text(self.config, self.vocabulary)
        ids = corpus.val[: min(characters, self.config.model.T)].tolist()
        known = [id_ for id_ in ids if id_ != corpus.vocabulary.unknown_id]
        text = corpus.vocabulary.decode(known).strip("\ufffd")
        return self.prepare(text, drop_unknown=True)  # the text may have changed

    def attention(self, text: str) -> "Attention":
        """Compute the attention weights of a text, and the predictions of the model.

        Args:
            text: 1 to `model.T` characters.

        Returns:
            An Attention of float32 tensors on the CPU: `weights` (n_layer, H, T, T), where row t is
            a query position and sums to 1, and `probabilities` (T, V). H is the number of heads, of
            all members of an ensemble together.

        Raises:
            UsageError: the text is empty, longer than `model.T`, or has unknown characters.
            CheckpointError: the model computes NaN or infinite numbers.
            OutOfMemory: the weights would take more memory than is free.
        """
        from gpt.device import default_modes
        from gpt.evaluation.attention import attend_text

        with default_modes():
            return attend_text(self.module, self.vocabulary, self.prepare(text))

    def attention_analysis(self, text: str) -> "AttentionAnalysis":
        """Compute the attention of a text, and the effect of each head.

        Args:
            text: 1 to `model.T` characters.

        Returns:
            An AttentionAnalysis: an Attention with `losses` (T - 1,), in nats of each character but
            the first; `losses_without` (n_layer, H, T - 1), the same with a head ablated;
            `value_norms` (n_layer, H, T); the scores `previous` and `induction` (n_layer, H); and
            the logit `lens`.

        Raises:
            UsageError, CheckpointError, OutOfMemory: see `attention`.
        """
        from gpt.device import default_modes
        from gpt.evaluation.analysis import analyze_text

        with default_modes():
            return analyze_text(self.module, self.vocabulary, self.prepare(text))

    @property
    def _torch_device(self) -> Any:
        return next(self.module.parameters()).device


def _whole_number(name: str, value: object, least: int) -> int:
    """Return the argument as an int. Raises UsageError unless it is one of `least` or more."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if number < least:
        raise UsageError(f"{name}: expected a whole number from {least} on, got {value!r:.100}")
    return number


def _texts(name: str, texts: object) -> list[str]:
    """Return one text or several as a list. Raises UsageError for anything else."""
    several = [texts] if isinstance(texts, str) else texts
    if not isinstance(several, Sequence) or not all(isinstance(text, str) for text in several):
        raise UsageError(f"{name}: expected a str or a list of str, got {texts!r:.100}")
    return list(several)


def load(
    run: str | Path | None = None, checkpoint: str | int = "best", device: str = "auto"
) -> Model:
    """Load the model of a run.

    Args:
        run: the folder of the run, or its name under `runs/`; default: the newest run.
        checkpoint: `best` (the lowest val loss), `last` or a step.
        device: auto, cpu, cuda, cuda:N or mps; it need not be the device of the training.

    Returns:
        The model of that checkpoint.

    Raises:
        UsageError: there is no such run.
        CheckpointError: the checkpoint is missing, damaged or not one of ours.
    """
    from gpt.runs.checkpoint import read_checkpoint
    from gpt.runs.folder import find_run

    folder = find_run(None if run is None else str(run))
    return Model(folder, read_checkpoint(folder, checkpoint), device)
