"""Settings of the model, such as its context length T and its width C."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpt.config.section import ConfigSection, Fraction, PositiveInt, fixed, inherited

# limits for untrusted configs, because a model is created before its weights are read
MAX_LAYERS = 1000  # largest number of blocks, or of n-gram tables, of all members together
MAX_ROTARY_ANGLES = 2**24  # largest T x head_size

Layers = Annotated[int, Field(gt=0, le=MAX_LAYERS)]


class ModelConfig(ConfigSection):
    """Settings of the model: its size, attention, embeddings and dropout."""

    T: PositiveInt = inherited(
        64, "context length: the characters that attention sees at once", group="model: size"
    )
    C: PositiveInt = fixed(128, "channels: the width of the residual stream")
    n_layer: Layers = fixed(4, "transformer blocks, each with attention and an MLP")
    n_head: PositiveInt = fixed(4, "attention heads in each block")
    head_size: PositiveInt = fixed(
        lambda given: given["C"] // given["n_head"] or 1,
        "channels of a head's queries and keys; null = C / n_head",
    )
    value_size: PositiveInt = fixed(
        lambda given: given["head_size"], "channels of a head's values; null = head_size"
    )
    ensemble: Annotated[int, Field(gt=0, le=64)] = fixed(
        1, "models that differ only in their seed; their predicted probabilities are averaged"
    )

    positions: Literal["learned", "rotary"] = fixed(
        "rotary",
        "learned position embeddings, or RoPE applied to queries and keys",
        group="model: attention, embeddings, MLP",
    )
    qk_norm: bool = fixed(True, "normalise queries and keys, which bounds the attention scores")
    attention_scale: Annotated[float, Field(gt=0, le=1000)] = fixed(
        1.0, "attention scores are attention_scale * q k / sqrt(head_size)"
    )
    key_offset: bool = fixed(
        False,
        "take half of each key's channels from the previous character, so that a head can attend "
        "to what followed a match (partial key offset, for induction heads)",
    )
    qkv_bias: bool = fixed(False, "add a bias to queries, keys and values")
    ngram: Layers = fixed(
        4,
        "embeddings that are summed at each position: those of its character and of the "
        "ngram - 1 characters before it",
    )
    activation: Literal["gelu", "relu2"] = fixed(
        "relu2", "activation of the MLP: GELU, or the square of ReLU"
    )

    dropout: Fraction = inherited(
        0.0,
        "dropout of the embeddings and of what each block adds to the residual stream",
        group="model: regularisation",
    )
    character_dropout: Fraction = inherited(
        0.0, "token dropout: the probability that an input character's embedding is set to zero"
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
                f"model.T x model.head_size is {self.T} x {self.head_size}; expected at most "
                f"{MAX_ROTARY_ANGLES:,}; reduce one of the two"
            )
        for key, count in (("model.n_layer", self.n_layer), ("model.ngram", self.ngram)):
            if self.ensemble * count > MAX_LAYERS:
                raise ValueError(
                    f"model.ensemble x {key} is {self.ensemble} x {count}; expected at most "
                    f"{MAX_LAYERS:,}; reduce one of the two"
                )
        # rotary positions rotate pairs of channels; with an offset, a key needs at least two pairs
        is_paired = self.positions == "rotary" or self.key_offset
        if is_paired and (self.head_size % 2 or (self.key_offset and self.head_size < 4)):
            raise ValueError(
                f"model.head_size: expected an even number, and at least 4 with model.key_offset, "
                f"got {self.head_size}"
            )
        return self
