"""A trained model to use: its samples, logits, loss and attention, of any text."""

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
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

    def val_text(self, characters: int) -> str:
        """Return the beginning of the run's val split.

        Args:
            characters: how many to return; fewer if the val split or `model.T` is shorter.

        Raises:
            GPTError: the text that the run was trained on can no longer be read.
        """
        from gpt.api.resolve import read_text

        _, corpus = read_text(self.config, self.vocabulary)
        ids = corpus.val[: min(characters, self.config.model.T)].tolist()
        known = [id_ for id_ in ids if id_ != self.vocabulary.unknown_id]
        return self.vocabulary.decode(known).strip("\ufffd")

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
