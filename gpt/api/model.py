"""A trained model: its samples, logits, losses and attention on any text."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from gpt.errors import UsageError
from gpt.files import check_working_folder
from gpt.runs.folder import find_run
from gpt.runs.format import CheckpointData
from gpt.runs.read import read_checkpoint
from gpt.sampling.choose_engine import open_engine
from gpt.sampling.generate import generate, sample_streams
from gpt.sampling.sampler import sampling_rules
from gpt.sampling.stopping import Chunk
from gpt.text.vocabulary import encode_prompt, prepare_prompt

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.model.attention_maps import Attention
    from gpt.model.ensemble import LanguageModel


class Model:
    """A trained model, as `gpt.load` returns it.

    Several threads can use one model. torch is imported by the first call that needs it.

    Attributes:
        run: the folder of the run.
        checkpoint: the content of the checkpoint: weights, config, vocabulary and val loss.
        device: the argument `device` of `gpt.load`, such as `auto`.
        step: the step of the checkpoint.
        config: the config of the run.
        vocabulary: the characters of the model and their ids; V is the number of ids.
    """

    def __init__(self, run: Path, checkpoint: CheckpointData, device: str) -> None:
        self.run, self.checkpoint, self.device = run, checkpoint, device
        self.step, self.config = checkpoint.step, checkpoint.config
        self.vocabulary = checkpoint.vocabulary
        self._loading = Lock()
        self._module: LanguageModel | None = None

    def __repr__(self) -> str:
        return f"<gpt.Model {self.run.name}, step {self.step}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model without its torch module, which is loaded again at its next use."""
        return Model, (self.run, self.checkpoint, self.device)

    @property
    def module(self) -> "LanguageModel":
        """The model as a torch module in evaluation mode, on the device."""
        with self._loading:
            if self._module is None:
                check_working_folder()
                from gpt.device import default_modes, select_device
                from gpt.runs.weights import load_model

                with default_modes():
                    self._module = load_model(self.checkpoint, select_device(self.device))
            return self._module

    def summary(self) -> str:
        """Return a line with the run's folder, the step and, if known, the val loss."""
        val_loss = self.checkpoint.val_loss
        if val_loss is None:
            return f"{self.run}, step {self.step}"
        unit = " per byte" if self.vocabulary.is_bytes else ""
        return f"{self.run}, step {self.step}, val loss {val_loss:.4f}{unit}"

    def prepare(self, prompt: str, *, drop_unknown: bool = False) -> str:
        """Normalise a prompt to match the training text; check that its characters have ids.

        Args:
            prompt: any text.
            drop_unknown: whether to remove characters outside the vocabulary, and log their number.

        Returns:
            The normalised prompt.

        Raises:
            UsageError: the prompt is not a str, or has characters without an id.
        """
        return prepare_prompt(prompt, self.vocabulary, drop_unknown=drop_unknown)

    def generate(  # noqa: D417  # one line describes several arguments
        self,
        prompt: str = "",
        *,
        length: int | None = None,
        seed: int | None = None,
        stops: str | Sequence[str] = (),
        rules: Mapping[str, float | None] | None = None,
    ) -> Iterator[str]:
        """Generate one text, and yield its parts as they are generated.

        Args:
            prompt: the text to continue; it is not yielded.
            length, seed, stops, rules: see `sample`.

        Returns:
            An iterator over parts of the text.

        Raises:
            UsageError, DeviceError, OutOfMemory: see `sample`.
        """
        chunks = self.sample([prompt], length=length, seed=seed, stops=stops, rules=rules)
        return (chunk.text for chunk in chunks)

    def sample(
        self,
        prompts: str | Sequence[str],
        *,
        num_samples: int = 1,
        length: int | None = None,
        seed: int | None = None,
        stops: str | Sequence[str] = (),
        keep_stop: bool = False,
        rules: Mapping[str, float | None] | None = None,
    ) -> Iterator[Chunk]:
        """Generate all samples in one batch, and yield their text in chunks.

        A chunk is a part of one sample. `Chunk.sample` is the index of that sample; the samples of
        the first prompt come first. `gpt.sampling.stopping.collect` joins the chunks of a sample.

        Args:
            prompts: the texts to continue; a str is one prompt. They are normalised by `prepare`.
            num_samples: the number of samples of each prompt.
            length: the number of characters of a sample; by default the run's `sample.length`.
            seed: the seed of the random draws; by default the seed of the run. The draws differ
                between the samples of a prompt, but are the same for each prompt.
            stops: strings that end a sample; a str is one string.
            keep_stop: whether the stop string is part of the sample.
            rules: changes of the config's section `sample`, such as `{"temperature": 0.5,
                "min_p": 0.1}`. A value of None leaves a setting unchanged.

        Returns:
            An iterator over chunks. A chunk has `text`, the `log_probabilities` of its characters,
            and `ended`, which is True in the last chunk of a sample.

        Raises:
            UsageError: an argument is wrong, or a prompt or stop has characters without an id.
            DeviceError: this machine does not have the device.
            OutOfMemory: the samples would take more memory than is free.
        """
        if not isinstance(rules, Mapping | None):
            raise UsageError(f"rules: expected a dict such as {{'min_p': 0.1}}, got {rules!r:.100}")
        chosen = sampling_rules(self.config.sample, **{"length": length, **(rules or {})})
        count = _whole_number("num_samples", num_samples, 1)
        used_seed = self.config.seed if seed is None else _whole_number("seed", seed, 0)
        vocabulary = self.vocabulary
        what, advice = "the stop string", "the model cannot generate it, so leave it out"
        stop_texts = [
            prepare_prompt(text, vocabulary, what=what, advice=advice)
            for text in _texts("stops", stops)
        ]
        if "" in stop_texts:
            raise UsageError("expected a stop string of at least one character, got ''")
        prompt_texts = [self.prepare(text) for text in _texts("prompts", prompts)]
        encoded = [encode_prompt(text, vocabulary) for text in prompt_texts]
        B, longest = count * len(encoded), max(map(len, encoded), default=0)
        return generate(
            open_engine(self.checkpoint, self.device, B, chosen.length, longest),
            vocabulary,
            [ids for ids in encoded for _ in range(count)],
            sample_streams(used_seed, [index for _ in encoded for index in range(count)]),
            length=chosen.length,
            stops=stop_texts,
            keep_stop=keep_stop,
            rules=chosen,
        )

    def logits(self, text: str) -> "Tensor":
        """Compute the logits of the next character after each character of a text.

        Args:
            text: T ids (characters or bytes), where T is from 1 to the setting `model.T`.

        Returns:
            float32 tensor (T, V) on the CPU. Row t predicts the character (or byte) t + 1.

        Raises:
            UsageError: the text is empty, too long, or has unknown characters.
        """
        prepared, module = self.prepare(text), self.module
        import torch

        from gpt.device import default_modes
        from gpt.text.batches import to_torch

        ids, T = to_torch(self.vocabulary.encode(prepared)), module.config.T
        if not 0 < len(ids) <= T:
            unit = self.vocabulary.unit
            raise UsageError(f"expected a text of 1 to {T} {unit}s (model.T), got {len(ids)}")
        device = next(module.parameters()).device
        with default_modes(), torch.no_grad():  # not inference_mode, whose tensors autograd refuses
            logits: Tensor = module(ids[None].to(device))
        return logits[0].float().cpu()

    def loss(self, text: str, *, drop_unknown: bool = False) -> float:
        """Compute the mean loss of a text, in the same way as the val loss of training.

        The text is cut into consecutive windows of at most `model.T` ids.

        Args:
            text: at least 2 characters.
            drop_unknown: whether to remove characters outside the vocabulary, and log their number.

        Returns:
            The loss in nats per character, averaged over all characters but the first.

        Raises:
            UsageError: the text has fewer than two characters, or unknown ones.
        """
        advice = "leave them out, or pass drop_unknown=True"
        prepared = prepare_prompt(text, self.vocabulary, drop_unknown=drop_unknown, advice=advice)
        module = self.module
        from gpt.device import default_modes
        from gpt.evaluation.loss import evaluate, scored_ids

        if len(prepared) < 2:
            raise UsageError(f"expected a text of at least 2 characters, got {len(prepared)}")
        ids = scored_ids(prepared, self.vocabulary)
        with default_modes():
            return evaluate(module, ids) * ((len(ids) - 1) / (len(prepared) - 1))

    def attention(self, text: str) -> "Attention":
        """Compute the attention weights of all heads on a text, and the network's predictions.

        In an ensemble, only the first member is used.

        Args:
            text: T ids (characters or bytes), where T is from 1 to the setting `model.T`.

        Returns:
            An Attention of float32 tensors on the CPU, for H heads. `weights` (n_layer, H, T, T)
            has a row for each query and a column for each key. Row t of `probabilities` (T, V)
            predicts the character (or byte) t + 1.

        Raises:
            UsageError: the text is empty, too long, or has unknown characters.
            CheckpointError: the model computes NaN or infinite numbers.
            OutOfMemory: the weights would take more memory than is free.
        """
        prepared, module = self.prepare(text), self.module
        from gpt.device import default_modes
        from gpt.model.attention_maps import attend_text
        from gpt.model.ensemble import members_of

        with default_modes():
            return attend_text(members_of(module)[0], self.vocabulary, prepared)


def load(
    run: str | Path | None = None, checkpoint: str | int = "best", device: str = "auto"
) -> Model:
    """Load the model of a run.

    Args:
        run: the folder of the run, or its name under `runs/`; by default the newest run.
        checkpoint: `best` (the lowest val loss), `last` or a step.
        device: auto, cpu, cuda, cuda:N or mps; the run may have been trained on another device.

    Returns:
        The model of that checkpoint.

    Raises:
        UsageError: there is no such run.
        CheckpointError: the checkpoint is missing or damaged.
        Unreadable: the checkpoint cannot be read now, or another version of gpt wrote it.
    """
    folder = find_run(None if run is None else str(run))
    return Model(folder, read_checkpoint(folder, checkpoint), device)


def _whole_number(name: str, value: object, least: int) -> int:
    """Return `value` as an int; raise UsageError unless it is an integer of at least `least`."""
    with suppress(TypeError):  # operator.index raises it for other types
        if not isinstance(value, bool) and (number := operator.index(cast(Any, value))) >= least:
            return number
    raise UsageError(f"{name}: expected an integer >= {least}, got {value!r:.100}")


def _texts(name: str, texts: object) -> list[str]:
    """Return `texts`, a str or a sequence of str, as a list; raise UsageError for other types."""
    items = [texts] if isinstance(texts, str) else texts
    if not isinstance(items, Sequence) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{name}: expected a str or a list of str, got {texts!r:.100}")
    return list(items)
