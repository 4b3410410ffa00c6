"""Settings of the transformer's shape, in the letters of the field; a token is a character."""

from functools import partial
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpt.config.section import Fraction, PositiveFloat, PositiveInt, Section, setting

MAX_LAYERS = 1000  # blocks, or n-gram tables; their parameters are listed before a model is read
MAX_MEMBERS = 64  # models of an ensemble
MAX_ROTARY_ANGLES = 2**24  # model.T x model.head_size; a model computes them before its weights
MIN_OFFSET_HEAD_SIZE = 4  # channels of a head of which half can be offset, in pairs
MAX_ATTENTION_SCALE = 1000.0  # makes attention one-hot long before; far from overflow

Layers = Annotated[int, Field(gt=0, le=MAX_LAYERS)]
Members = Annotated[int, Field(gt=0, le=MAX_MEMBERS)]

_shape = partial(setting, fine_tuning="fixed")  # a setting that the stored weights depend on


class ModelConfig(Section):
    """The shape of the transformer."""

    T: PositiveInt = setting(
        64,
        "context length in characters",
        heading="model: size",
        fine_tuning="inherited",
        other_names="block_size context context_length context_size context_window max_seq_len "
        "max_seq_length n_ctx n_positions seq_len seq_length sequence_length",
    )
    C: PositiveInt = _shape(
        128,
        "channels: the width of the residual stream",
        other_names="d_model dim embed_dim emb_dim embedding_dim embedding_size hidden_dim "
        "hidden_size n_embd n_embed width",
    )
    n_layer: Layers = _shape(
        4,
        "transformer blocks, each with attention and an MLP",
        other_names="depth layers n_layers num_hidden_layers num_layers",
    )
    n_head: PositiveInt = _shape(
        4,
        "attention heads in each block",
        other_names="heads n_heads num_attention_heads num_heads",
    )
    head_size: PositiveInt = _shape(
        lambda given: given["C"] // given["n_head"] or 1,
        "channels of a head's queries and keys; null = C / n_head",
        other_names="d_head head_dim",
    )
    value_size: PositiveInt = _shape(
        lambda given: given["head_size"], "channels of a head's values; null = head_size"
    )
    ensemble: Members = _shape(
        1,
        "models that differ only in their seed and are trained side by side; their predicted "
        "probabilities are averaged",
    )

    positions: Literal["learned", "rotary"] = _shape(
        "rotary",
        "learned position embeddings, or RoPE applied to queries and keys",
        heading="model: attention, embeddings, MLP",
    )
    qk_norm: bool = _shape(True, "normalise queries and keys, which bounds the attention scores")
    attention_scale: Annotated[PositiveFloat, Field(le=MAX_ATTENTION_SCALE)] = _shape(
        1.0, "attention scores are attention_scale * q k / sqrt(head_size)"
    )
    key_offset: bool = _shape(
        False,
        "take half of each key's channels from the previous character, so that a head can attend "
        "to what followed a match (partial key offset, for induction heads)",
    )
    qkv_bias: bool = _shape(False, "add a bias to queries, keys and values", other_names="bias")
    ngram: Layers = _shape(
        4,
        "character embeddings that are summed at each position: its own and those of the "
        "ngram - 1 characters before it; 1 = only its own",
    )
    activation: Literal["gelu", "relu2"] = _shape(
        "relu2", "activation of the MLP: GELU, or the square of ReLU"
    )

    dropout: Fraction = setting(
        0.0,
        "dropout of the embeddings and of what each block adds to the residual stream",
        heading="model: regularisation",
        fine_tuning="inherited",
        other_names="drop_rate dropout_rate",
    )
    attention_dropout: Fraction = setting(
        0.0, "dropout of the attention weights", fine_tuning="inherited"
    )
    character_dropout: Fraction = setting(
        0.0,
        "token dropout: the probability that an input character's embedding is set to zero",
        fine_tuning="inherited",
    )

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if "head_size" not in self.model_fields_set and self.C % self.n_head:
            raise ValueError(
                f"model.head_size: model.C {self.C} is not a multiple of model.n_head "
                f"{self.n_head}; set model.head_size (n_head x head_size need not equal C)"
            )
        if self.T * self.head_size > MAX_ROTARY_ANGLES:
            raise ValueError(
                f"model.T: expected model.T x model.head_size of at most {MAX_ROTARY_ANGLES:,}, "
                f"got {self.T} x {self.head_size}"
            )
        if self.ensemble * max(self.n_layer, self.ngram) > MAX_LAYERS:
            raise ValueError(
                f"model.ensemble: expected model.ensemble x model.n_layer (and x model.ngram) of "
                f"at most {MAX_LAYERS:,}, got {self.ensemble} x {max(self.n_layer, self.ngram)}"
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(
                f"model.head_size: expected an even number, as model.positions rotary rotates "
                f"pairs of channels, got {self.head_size}"
            )
        if self.key_offset and not self.can_offset_keys:
            raise ValueError(
                f"model.head_size: expected an even number of at least {MIN_OFFSET_HEAD_SIZE}, as "
                f"model.key_offset offsets pairs of channels, got {self.head_size}"
            )
        return self

    @property
    def can_offset_keys(self) -> bool:
        """Whether half of a key of this head_size can be offset."""
        return self.head_size % 2 == 0 and self.head_size >= MIN_OFFSET_HEAD_SIZE
