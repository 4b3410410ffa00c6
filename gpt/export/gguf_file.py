"""Export a model as a GGUF file, which llama.cpp and programs built on it load.

Three of llama.cpp's architectures compute the same function as models with these settings:

architecture   positions   activation
nemotron       rotary      relu2
starcoder2     rotary      gelu
gpt2           learned     gelu

llama.cpp has no tokenizer for characters. The file therefore declares a byte-level BPE, whose
merges join the bytes of each character of the vocabulary. llama.cpp skips all other characters. The
last id is an end token of probability zero. Without it, llama.cpp would end texts at id 11.

Shapes: C channels, V vocabulary size.
"""

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from gpt.config.schema import ModelConfig
from gpt.errors import UsageError
from gpt.export.huggingface_classes import rename_layers, scaled_qkv
from gpt.export.huggingface_tokenizer import BYTE_SYMBOLS
from gpt.inspection.output import write_out, writing
from gpt.runs.format import CheckpointData, Tensors
from gpt.text.vocabulary import Vocabulary

ARCHITECTURES = {
    ("rotary", "relu2"): "nemotron",
    ("rotary", "gelu"): "starcoder2",
    ("learned", "gelu"): "gpt2",
}
GGUF = {  # names of layers in GGUF, by their names in gpt; {i} is the index of the block
    "position_embedding": "position_embd",
    "attention_norm": "blk.{i}.attn_norm",
    "attention.projection": "blk.{i}.attn_output",
    "mlp_norm": "blk.{i}.ffn_norm",
    "mlp.expand": "blk.{i}.ffn_up",
    "mlp.projection": "blk.{i}.ffn_down",
}
END = "<|endoftext|>"  # the name by which llama.cpp recognises the end token
END_LOGIT = np.float32(-1000)  # so low that the token has a probability of zero
NEVER_MERGED = "ÿ ÿ"  # llama.cpp requires a merge; these two bytes never occur in UTF-8


def export_gguf(name: str, checkpoint: CheckpointData, out: Path) -> None:
    """Write a model as a GGUF file.

    Args:
        name: the name of the model.
        checkpoint: the model.
        out: the file to write.

    Raises:
        UsageError: llama.cpp cannot run the model, or the package gguf is missing.
    """
    try:
        import gguf
    except ImportError:
        raise UsageError(
            "--to gguf: expected the package gguf, which is not installed; pip install gguf"
        ) from None
    model, vocabulary = checkpoint.config.model, checkpoint.vocabulary
    check_model(model, vocabulary)
    writer = gguf.GGUFWriter(None, ARCHITECTURES[model.positions, model.activation])
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(model.T)
    writer.add_embedding_length(model.C)
    writer.add_block_count(model.n_layer)
    writer.add_feed_forward_length(4 * model.C)
    writer.add_head_count(model.n_head)
    writer.add_head_count_kv(model.n_head)
    writer.add_layer_norm_eps(1e-5)
    if model.positions == "rotary":
        writer.add_rope_dimension_count(model.head_size)
        writer.add_rope_freq_base(10_000.0)
    _add_tokenizer(writer, vocabulary)
    for key, tensor in gguf_tensors(model, checkpoint.weights).items():
        writer.add_tensor(key, np.ascontiguousarray(tensor))
    with writing(out), tempfile.TemporaryDirectory(dir=out.parent, prefix=".") as folder:
        file = Path(folder, "model.gguf")
        with closing(writer):
            writer.write_header_to_file(file)
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        write_out(out, file.read_bytes())


def check_model(model: ModelConfig, vocabulary: Vocabulary) -> None:
    """Raise UsageError with the reasons if llama.cpp cannot run the model."""
    obstacles = model.obstacles()
    if vocabulary.unknown:
        obstacles.append(f"{vocabulary.unknown} characters that share one id (expected 0)")
    if obstacles:
        raise UsageError(
            f"--to gguf: llama.cpp has no architecture for {', '.join(obstacles)}; train a model "
            f"with --set model.exportable=true, or choose another format"
        )


def gguf_tensors(model: ModelConfig, weights: Tensors) -> Tensors:
    """Return the tensors of a GGUF file by name, with V + 1 tokens: the last is the end token.

    Args:
        model: a config that llama.cpp can run: `model.obstacles()` is empty.
        weights: the parameters by name.
    """
    table = weights["token_embedding.weight"]  # (V, C)
    tensors = {"token_embd.weight": np.pad(table, ((0, 1), (0, 0)))} | _output(weights)
    tensors |= rename_layers(weights, GGUF)
    for i in range(model.n_layer):
        arrays = zip(("weight", "bias"), scaled_qkv(model, weights, i), strict=True)
        for kind, rows in arrays:
            parts = dict(zip("qkv", rows, strict=True))
            if model.positions == "learned":
                parts = {"qkv": np.concatenate(rows)}
            tensors |= {f"blk.{i}.attn_{part}.{kind}": array for part, array in parts.items()}
    return tensors


def _output(weights: Tensors) -> Tensors:
    """Return the last LayerNorm and the output layer (V + 1, C), with a row for the end token.

    The logit of the end token must be END_LOGIT after any text. This needs a bias, but llama.cpp's
    output layer has none. Therefore, the LayerNorm gets weight 1 and bias 1. It maps a normalised
    vector n, which has the sum 0, to n + 1. A row r of the output layer then yields the logit
    r @ n + sum(r). For the end token, all numbers of r are END_LOGIT / C. Each other row is
    multiplied by the LayerNorm's old weight, then shifted so that sum(r) = old row @ old bias.
    """
    scaled = weights["head.weight"] * weights["norm.weight"]  # (V, C)
    bias = np.append(weights["head.weight"] @ weights["norm.bias"], END_LOGIT)  # (V + 1,)
    C = scaled.shape[1]
    rows = np.pad(scaled - scaled.mean(1, keepdims=True), ((0, 1), (0, 0))) + bias[:, None] / C
    ones = np.ones(C, np.float32)
    return {
        "output_norm.weight": ones,
        "output_norm.bias": ones,
        "output.weight": rows.astype(np.float32),
    }


def _add_tokenizer(writer: Any, vocabulary: Vocabulary) -> None:
    pieces = [bytes([i]) for i in range(256)]
    if not vocabulary.is_bytes:
        pieces = [character.encode() for character in vocabulary.characters]
    merges = [
        f"{_symbols(piece[:i])} {_symbols(piece[i : i + 1])}"
        for piece in pieces
        for i in range(1, len(piece))
    ]
    tokens = [*map(_symbols, pieces), END]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")  # keeps spaces before punctuation
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(pieces) + [3])  # normal, control
    writer.add_token_merges([*dict.fromkeys(merges)] or [NEVER_MERGED])
    writer.add_bos_token_id(len(pieces))
    writer.add_eos_token_id(len(pieces))
    writer.add_add_bos_token(False)


def _symbols(piece: bytes) -> str:
    """Write bytes as GPT-2's BPE does, each as one visible character."""
    return "".join(BYTE_SYMBOLS[byte] for byte in piece)
