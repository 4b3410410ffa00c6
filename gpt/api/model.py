"""A trained model to use: its samples, logits, loss and attention, of any text."""

import logging
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
        self._told = set[str]()  # characters that share the unknown id
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
        """Return the folder, the step and, if it is known, the val loss, in one line."""
        val_loss = self.checkpoint.val_loss
        known = "" if val_loss is None else f", val loss {val_loss:.4f}"
        known += " per byte" if known and self.vocabulary.is_bytes else ""
        return f"{self.run}, step {self.step}{known}"

    def prepare(self, prompt: str, *, drop_unknown: bool = False) -> str:
        """Normalise a prompt as the training text was.

        If the vocabulary has an id for all unknown characters, a notice lists those of the prompt.

        Args:
            prompt: any text.
            drop_unknown: whether to leave out characters without an id.

        Returns:
            The normalised prompt.

        Raises:
            UsageError: the prompt has characters without an id, and `drop_unknown` is False.
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

    def generate(
        self,
        prompt: str = "",
        *,
        length: int | None = None,
        seed: int | None = None,
        stops: Sequence[str] = (),
        until_stop: bool = False,
        drop_unknown: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        context_after_overflow: int | None = None,
    ) -> Iterator[str]:
        """Generate the text after a prompt, one character or a few at a time.

        Args:
            prompt: the beginning, which is not repeated.
            length, seed, stops, until_stop, drop_unknown: see `sample`.
            temperature, top_k, top_p, min_p, repetition_penalty, context_after_overflow: see
                `sample`.

        Yields:
            Text; joined, it is the sample.

        Raises:
            UsageError, DeviceError, OutOfMemory: see `sample`.
        """
        chunks = self.sample(
            [prompt],
            length=length,
            seed=seed,
            stops=stops,
            until_stop=until_stop,
            drop_unknown=drop_unknown,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            context_after_overflow=context_after_overflow,
        )
        for chunk in chunks:
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
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        context_after_overflow: int | None = None,
    ) -> Iterator["Chunk"]:
        """Generate `num_samples` samples of each prompt, side by side.

        Args:
            prompts: the beginnings of the samples, which are not repeated.
            num_samples: the number of samples of each prompt.
            length: the length of a sample, in characters; default `sample.length` of the config.
            seed: the seed of the draws, which also depend on the index of the sample; default the
                seed of the run.
            stops: strings that end a sample, and are not part of it.
            until_stop: whether to generate until a stop string comes, or up to `length` if given.
            drop_unknown: whether to leave out characters that the vocabulary does not have.
            temperature: divides the logits; 0 takes the likeliest character.
            top_k: sample from this number of likeliest characters.
            top_p: sample from the likeliest characters of this total probability.
            min_p: sample from the characters of at least this share of the highest probability.
            repetition_penalty: makes recent characters less likely if above 1.
            context_after_overflow: the number of characters of context that are kept when a text
                outgrows `model.T`. For this and the five before, None is the value in the config.

        Yields:
            Chunks of the samples as they come, each with the index of its `sample` and its `text`.

        Raises:
            UsageError: a prompt or stop string has characters that the vocabulary does not have, or
                an argument has a value out of its range.
            DeviceError: this machine does not have the device.
            OutOfMemory: the samples would take more memory than is free.
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
            rules=SamplingRules.from_config(
                defaults,
                length=length,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                context_after_overflow=context_after_overflow,
            ),
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
        with default_modes(), torch.no_grad():
            logits: Tensor = self.module(ids[None].to(self._torch_device))[0]
        return logits.float().cpu()

    def loss(self, text: str) -> float:
        """Compute the mean loss of a text, as `val_loss` is: in consecutive windows of `model.T`.

        Args:
            text: at least 2 characters.

        Returns:
            Nats per character, over all characters but the first.

        Raises:
            UsageError: the text has fewer than two characters, or unknown ones.
        """
        from gpt.device import default_modes
        from gpt.evaluation.loss import evaluate
        from gpt.evaluation.units import scored_ids, units_of

        text = self.prepare(text)
        if len(text) < 2:
            raise UsageError(f"expected a text of at least 2 characters, got {len(text)}")
        with default_modes():
            loss = evaluate(self.module, scored_ids(text, self.vocabulary), self.vocabulary)
        return units_of(text, self.vocabulary).per_character(loss)

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
