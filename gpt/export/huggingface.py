"""Export a model as a folder that the transformers library loads.

    config.json  model.safetensors         the model
    modeling_gpt.py                        its class
    tokenizer.json  tokenizer_config.json  a tokenizer without custom code
    generation_config.json                 the run's sampling settings
    README.md                              the model card

Exporting needs neither transformers nor torch.
"""

import json
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import safetensors.numpy

from gpt import __version__
from gpt.errors import UsageError, arguments
from gpt.files import check_absent, naming, write_synced
from gpt.model.shapes import member_prefixes, parameter_count
from gpt.runs.format import CheckpointData
from gpt.text.vocabulary import Vocabulary, encode_prompt

TEMPLATES = files("gpt.export") / "huggingface_files"
CODE = "modeling_gpt.py"  # file with the model's code; a folder that has it is an export
CLASS = "CharacterGPTForCausalLM"  # name of the model's class in modeling_gpt.py
PADDING = "[PAD]"  # the padding token: its id is V, and the model masks it
UNKNOWN = "[UNK]"  # not in the vocabulary, so that the tokenizer refuses unknown characters
LINE_ENDS = {"type": "Replace", "pattern": {"Regex": r"\r\n?"}, "content": "\n"}
EACH_CHARACTER = {  # splits a text into characters
    "type": "Split",
    "pattern": {"Regex": r"[\s\S]"},
    "behavior": "Isolated",
    "invert": False,
}
BYTE_LEVEL = {  # writes each byte of UTF-8 as a visible character, as GPT-2's tokenizer does
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}


def export_huggingface(
    run: Path, checkpoint: CheckpointData, out: Path, *, overwrite: bool = False
) -> None:
    """Write the `checkpoint` of `run` to the folder `out`, for transformers.

    With `overwrite`, an earlier export in `out` is replaced, after all new files have been written.
    Other files in `out` are kept.

    Raises:
        UsageError: `out` is a file, a folder without an export, or exists without `overwrite`.
    """
    _check_folder(out, overwrite)
    prefix = "members.0." if member_prefixes(checkpoint.config.model) == [""] else ""
    weights = {f"{prefix}{name}": weight for name, weight in checkpoint.weights.items()}
    contents = {
        "config.json": _json(_model_config(checkpoint)),
        "generation_config.json": _json(_generation(checkpoint)),
        "model.safetensors": safetensors.numpy.save(weights, {"format": "pt"}),
        CODE: (TEMPLATES / CODE).read_bytes(),
        "tokenizer.json": _json(tokenizer_json(checkpoint.vocabulary)),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": checkpoint.config.model.T,
                "clean_up_tokenization_spaces": False,
                "pad_token": PADDING,
                "padding_side": "left",
            }
        ),
        "README.md": _model_card(run, checkpoint).encode(),
    }
    with naming(out):
        _write(out, contents)


def _check_folder(out: Path, overwrite: bool) -> None:
    """Raise UsageError unless an export can be written to the folder `out`."""
    option = arguments("out")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UsageError(f"{option} {out}: expected a folder, got a file; choose another name")
    if not overwrite:
        check_absent(out, option)
    elif out.is_dir() and not (out / CODE).is_file() and [*out.glob("[!.]*")]:
        raise UsageError(
            f"{option} {out}: expected a new or empty folder, or one that gpt exported, got one "
            f"with other files; choose another name"
        )


def _write(out: Path, contents: dict[str, bytes]) -> None:
    """Write the files `contents` (bytes by name) to a temporary folder, then move them to `out`.

    If an export to a new folder is interrupted, `out` does not exist.
    """
    place = out if out.is_dir() else out.parent
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=".") as temporary:
        complete = Path(temporary, "complete")
        complete.mkdir()
        for name, content in contents.items():
            write_synced(complete / name, [content])
        if place == out:  # `out` is an existing folder: replace only the files of the export
            for name in contents:
                (complete / name).replace(out / name)
        else:
            complete.rename(out)


def _json(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree, indent=2).encode() + b"\n"


def _model_config(checkpoint: CheckpointData) -> dict[str, Any]:
    """Return the content of config.json: the settings of CharacterGPTConfig in modeling_gpt.py."""
    model = checkpoint.config.model
    excluded = {"T", "C", "n_head", "dropout", "character_dropout"}  # renamed, or only for training
    return {
        "architectures": [CLASS],
        "auto_map": {
            "AutoConfig": "modeling_gpt.CharacterGPTConfig",
            "AutoModelForCausalLM": f"modeling_gpt.{CLASS}",
        },
        "model_type": "character_gpt",
        "vocab_size": len(checkpoint.vocabulary),
        "max_position_embeddings": model.T,
        "hidden_size": model.C,
        "num_hidden_layers": 1 + model.ensemble * model.n_layer,
        "num_attention_heads": model.n_head,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": False,
        "dtype": "float32",
    } | model.model_dump(exclude=excluded)


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the content of tokenizer.json.

    The tokenizer changes line ends to LF, then encodes a text as `Vocabulary.encode` does. It
    raises an error for characters without an id.
    """
    names = [*vocabulary.characters]
    split: dict[str, Any] = EACH_CHARACTER
    decoder: dict[str, Any] = {"type": "Fuse"}
    if vocabulary.is_bytes:
        names, decoder = _byte_symbols(), BYTE_LEVEL
        split = {"type": "Sequence", "pretokenizers": [BYTE_LEVEL, EACH_CHARACTER]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": len(names), "content": PADDING, "special": True}
            | dict.fromkeys(("normalized", "single_word", "lstrip", "rstrip"), False)
        ],
        "normalizer": LINE_ENDS,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "WordLevel",
            "vocab": {name: id_ for id_, name in enumerate(names)},
            "unk_token": UNKNOWN,
        },
    }


def _byte_symbols() -> list[str]:
    """Return, for each of the 256 bytes, the character that stands for it in GPT-2's tokenizer.

    A byte that is a visible character of Latin-1 stands for itself. The other bytes, in ascending
    order, have the characters U+0100, U+0101 and so on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(code) for code in range(0x100, 0x200))
    return [chr(byte) if byte in visible else next(others) for byte in range(256)]


def _generation(checkpoint: CheckpointData) -> dict[str, Any]:
    """Return the content of generation_config.json: the run's sampling rules."""
    sample = checkpoint.config.sample
    rules: dict[str, Any] = {"do_sample": False}
    if sample.temperature:
        rules = {
            "do_sample": True,
            "temperature": sample.temperature,
            "top_k": sample.top_k or 0,  # 0 allows all ids; the default of transformers is 50
            "top_p": sample.top_p,
            "min_p": sample.min_p or None,
        }
    rules["pad_token_id"] = len(checkpoint.vocabulary)
    return {key: value for key, value in rules.items() if value is not None}


def _model_card(run: Path, checkpoint: CheckpointData) -> str:
    """Return the model card, which is the README.md of the folder."""
    from jinja2 import Environment, StrictUndefined

    template = Environment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(
        (TEMPLATES / "model_card.md").read_text("utf-8")
    )
    config, vocabulary = checkpoint.config, checkpoint.vocabulary
    source = config.data.source
    sources = [source] if isinstance(source, str) else source
    return template.render(
        name=run.resolve().name,
        version=__version__,
        checkpoint=checkpoint,
        vocabulary=vocabulary,
        unit=vocabulary.unit,
        parameters=parameter_count(config.model, len(vocabulary)),
        config=config.model,
        prompt=repr(vocabulary.decode(encode_prompt("", vocabulary))),
        texts=[Path(name).name or name for name in sources],
    )
