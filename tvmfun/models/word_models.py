"""Language models over words: a transformer encoder with sinusoidal positions, and an LSTM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import nn, random, tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.interop.state_dict import Row, linear, norm
from tvmfun.models.blocks import dropout_keys
from tvmfun.models.config_checks import check_heads, check_sizes
from tvmfun.nn.init import zeros
from tvmfun.typing import ArrayLike, DTypeLike, Key, PyTree

__all__ = [
    "LSTMConfig",
    "LSTMLanguageModel",
    "TransformerConfig",
    "TransformerLanguageModel",
    "lstm_state_dict",
    "sinusoidal_positions",
    "transformer_state_dict",
]


def sinusoidal_positions(length: int, width: int, dtype: DTypeLike = "float32") -> Array:
    """Returns sines at even and cosines at odd features of shape (length, width), of wave lengths up to 10000 * 2 pi.

    Reference: Vaswani et al., "Attention Is All You Need" (2017).

    >>> sinusoidal_positions(2, 4)
    Array([[0.        , 1.        , 0.        , 1.        ],
           [0.84147096, 0.5403023 , 0.00999983, 0.99995   ]], dtype=float32)
    """
    return _sinusoids(tnp.arange(length), width, dtype)


def _sinusoids(positions: Array, width: int, dtype: DTypeLike) -> Array:
    rates = tnp.exp(tnp.arange(0, width, 2, dtype="float64") * (-tnp.log(tnp.asarray(10000.0, "float64")) / width))
    angles = positions.astype("float64")[:, None] * rates
    return tnp.stack([tnp.sin(angles), tnp.cos(angles)], -1).reshape(len(positions), -1)[:, :width].astype(dtype)


def _symmetric(bound: float) -> Any:
    return lambda key, shape, dtype: random.uniform(key, shape, dtype, -bound, bound)


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes of a transformer, by the names of ``torch.nn.Transformer``.

    Args:
        vocab_size: the number of tokens.
        d_model: the width.
        nhead: the number of attention heads; it must divide the width.
        dim_feedforward: the width of the feed-forward networks.
        num_layers: the number of layers, of an encoder and of a decoder alike.
        dropout: the probability of dropping an element.
        max_length: the longest sequence.
    """

    vocab_size: int
    d_model: int = 200
    nhead: int = 2
    dim_feedforward: int = 200
    num_layers: int = 2
    dropout: float = 0.2
    max_length: int = 5000

    def __post_init__(self) -> None:
        check_sizes(self)
        check_heads(self, "nhead", "d_model")


def check_length(where: str, length: int, config: TransformerConfig) -> None:
    """Raises a ShapeError if a model has fewer positions than a sequence."""
    if length > config.max_length:
        what = f"a sequence must have at most max_length = {config.max_length} tokens"
        raise ShapeError(where, what, got=str(length))


def embed(where: str, table: nn.Embedding, tokens: ArrayLike, start: ArrayLike, config: TransformerConfig) -> Array:
    """Returns the embeddings of tokens, scaled by the root of the width, plus those of positions from ``start`` on.

    Raises:
        ShapeError: if there are more tokens than the model has positions.
    """
    x = table(tokens) * config.d_model**0.5
    length = x.shape[-2]
    check_length(where, length, config)
    return x + _sinusoids(tnp.asarray(start, "int32") + tnp.arange(length, dtype="int32"), config.d_model, x.dtype)


@tree.register_dataclass
@dataclass(frozen=True)
class TransformerLanguageModel:
    """The causal language model of PyTorch's tutorial "Language Modeling with nn.Transformer".

    Call it with tokens, integers of shape (batch, length); it returns the logits of each next token.

    >>> model = TransformerLanguageModel.create(TransformerConfig(50, 16, 2, 16), random.key(0))
    >>> model(tnp.zeros((2, 8), "int32"), train=False).shape
    (2, 8, 50)
    """

    embedding: nn.Embedding
    encoder: nn.TransformerEncoder
    linear: nn.Linear
    dropout: nn.Dropout
    config: TransformerConfig = field(metadata={"static": True})

    @classmethod
    def create(cls, config: TransformerConfig, key: Key, dtype: DTypeLike = "float32") -> TransformerLanguageModel:
        """Returns a model with new parameters."""
        embedding_key, linear_key, *keys = random.split(key, config.num_layers + 2)
        sizes = config.d_model, config.nhead, config.dim_feedforward, config.dropout
        layers = [nn.TransformerEncoderLayer(*sizes, key=k, dtype=dtype) for k in keys]
        init: dict[str, Any] = {"dtype": dtype, "weight_init": _symmetric(0.1)}
        return cls(
            nn.Embedding(config.vocab_size, config.d_model, key=embedding_key, **init),
            nn.TransformerEncoder(layers),
            nn.Linear(config.d_model, config.vocab_size, key=linear_key, bias_init=zeros, **init),
            nn.Dropout(config.dropout),
            config,
        )

    def __call__(self, tokens: ArrayLike, *, key: Key | None = None, train: bool = True) -> Array:
        """Returns the logits of the next token after each position; ``key`` is for the dropout while training.

        Raises:
            ShapeError: if a sequence is longer than ``config.max_length``.
        """
        first, second = dropout_keys("TransformerLanguageModel", key, train, self.dropout.rate, 2)
        x = self.embed(tokens)
        x = self.encoder(self.dropout(x, key=first, train=train), is_causal=True, key=second, train=train)
        return self.linear(x)

    def embed(self, tokens: ArrayLike, start: ArrayLike = 0) -> Array:
        """Returns the embeddings of tokens at positions from ``start`` on, positions added."""
        return embed("TransformerLanguageModel", self.embedding, tokens, start, self.config)

    def init_cache(self, batch: int, length: int) -> tuple[nn.KVCache, ...]:
        """Returns empty caches for :meth:`decode`, of sequences of up to ``length`` tokens.

        Raises:
            ShapeError: if these are more than ``config.max_length``.
        """
        check_length("TransformerLanguageModel", length, self.config)
        return self.encoder.init_cache(batch, length)

    def decode(self, tokens: ArrayLike, caches: tuple[nn.KVCache, ...]) -> tuple[Array, tuple[nn.KVCache, ...]]:
        """Returns the logits after the next tokens of sequences in caches, and the next caches."""
        x, caches = self.encoder.decode(self.embed(tokens, caches[0].index), caches)
        return self.linear(x), caches


@dataclass(frozen=True)
class LSTMConfig:
    """The sizes of an LSTM language model.

    Args:
        vocab_size: the number of tokens.
        embedding_size: the width of the embeddings.
        hidden_size: the number of units of a layer.
        num_layers: the number of layers.
        dropout: the probability of dropping an element of the embeddings, between layers, and of the outputs.
        tied: whether the table of tokens is the last layer, too; the two widths must then be equal.
    """

    vocab_size: int
    embedding_size: int = 200
    hidden_size: int = 200
    num_layers: int = 2
    dropout: float = 0.2
    tied: bool = False

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.tied and self.embedding_size != self.hidden_size:
            got = f"{self.embedding_size} and {self.hidden_size}"
            raise ArgumentError("LSTMConfig", "tied models need embedding_size = hidden_size", got=got)


@tree.register_dataclass
@dataclass(frozen=True)
class LSTMLanguageModel:
    """The LSTM of PyTorch's example ``word_language_model``.

    Call it with tokens, integers of shape (batch, length), and the state after the tokens before them; it returns the
    logits of each next token and the new state.

    >>> model = LSTMLanguageModel.create(LSTMConfig(50, 8, 8), random.key(0))
    >>> logits, state = model(tnp.zeros((2, 5), "int32"), train=False)
    >>> logits.shape
    (2, 5, 50)
    """

    embedding: nn.Embedding
    lstm: nn.LSTM
    linear: nn.Linear | None
    bias: Array | None
    dropout: nn.Dropout

    @classmethod
    def create(cls, config: LSTMConfig, key: Key, dtype: DTypeLike = "float32") -> LSTMLanguageModel:
        """Returns a model with new parameters."""
        keys, width = random.split(key, 3), config.embedding_size
        init: dict[str, Any] = {"dtype": dtype, "weight_init": _symmetric(0.1)}
        settings: dict[str, Any] = {"dropout": config.dropout, "dtype": dtype}
        last = (
            None
            if config.tied
            else nn.Linear(config.hidden_size, config.vocab_size, key=keys[2], bias_init=zeros, **init)
        )
        return cls(
            nn.Embedding(config.vocab_size, width, key=keys[0], **init),
            nn.LSTM(width, config.hidden_size, config.num_layers, key=keys[1], **settings),
            last,
            tnp.zeros((config.vocab_size,), dtype) if config.tied else None,
            nn.Dropout(config.dropout),
        )

    def __call__(
        self, tokens: ArrayLike, state: PyTree = None, *, key: Key | None = None, train: bool = True
    ) -> tuple[Array, PyTree]:
        """Returns logits and the state; ``key`` is for the dropout while training."""
        keys = dropout_keys("LSTMLanguageModel", key, train, self.dropout.rate, 3)
        x = self.dropout(self.embedding(tokens), key=keys[0], train=train)
        x, state = self.lstm(x, state, key=keys[1], train=train)
        x = self.dropout(x, key=keys[2], train=train)
        return self.embedding.attend(x) + self.bias if self.linear is None else self.linear(x), state

    def init_state(self, batch: int) -> tuple[Array, Array]:
        """Returns the state before the first token: zeros, twice (layers, batch, hidden_size)."""
        weight = self.lstm.cells[0][0].weight_hh
        zero = tnp.zeros((len(self.lstm.cells), batch, weight.shape[0]), weight.dtype)
        return zero, zero


def transformer_layer_rows(path: str, name: str, decoder: bool = False) -> list[Row]:
    """Returns the rows of a layer of ``torch.nn``'s transformers, whose maps of queries, keys and values are one."""
    rows = []
    for attention in ("self_attn", "multihead_attn") if decoder else ("self_attn",):
        for k, part in enumerate("qkv"):
            ours, theirs = f"{path}.{attention}.{part}_proj", f"{name}.{attention}.in_proj"
            rows += [
                Row(f"{ours}.weight", f"{theirs}_weight", "linear", (k, 3)),
                Row(f"{ours}.bias", f"{theirs}_bias", part=(k, 3)),
            ]
        rows += linear(f"{path}.{attention}.out_proj", f"{name}.{attention}.out_proj")
    rows += linear(f"{path}.linear1", f"{name}.linear1") + linear(f"{path}.linear2", f"{name}.linear2")
    for i in range(1, 4 if decoder else 3):
        rows += norm(f"{path}.norm{i}", f"{name}.norm{i}")
    return rows


def transformer_state_dict() -> list[Row]:
    """Returns the table of the arrays of the tutorial's ``TransformerModel``."""
    return [
        Row(".embedding.weight", "embedding.weight"),
        *transformer_layer_rows(".encoder.layers[{i}]", "transformer_encoder.layers.{i}"),
        *linear(".linear", "linear"),
    ]


def lstm_state_dict(config: LSTMConfig) -> list[Row]:
    """Returns the table of the arrays of the example's ``RNNModel``."""
    rows = [Row(".embedding.weight", "encoder.weight")]
    for i in range(config.num_layers):
        for kind in ("ih", "hh"):
            rows.append(Row(f".lstm.cells[{i}][0].weight_{kind}", f"rnn.weight_{kind}_l{i}", "linear"))
            rows.append(Row(f".lstm.cells[{i}][0].bias_{kind}", f"rnn.bias_{kind}_l{i}"))
    if config.tied:
        return [*rows, Row(".embedding.weight", "decoder.weight", tied=True), Row(".bias", "decoder.bias")]
    return [*rows, *linear(".linear", "decoder")]
