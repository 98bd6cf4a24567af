"""Layers: parameters that know what to compute. Each is an immutable tree of arrays and static settings."""

from tvmfun.nn.layers.attention import KVCache, MultiHeadAttention, RotaryEmbedding
from tvmfun.nn.layers.convolution import Conv2d
from tvmfun.nn.layers.dropout import Dropout
from tvmfun.nn.layers.linear import Linear
from tvmfun.nn.layers.normalization import LayerNorm
from tvmfun.nn.layers.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from tvmfun.nn.layers.transformer import (
    DecoderCache,
    Stacked,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Conv2d",
    "DecoderCache",
    "Dropout",
    "GRUCell",
    "KVCache",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "MultiHeadAttention",
    "RNNCell",
    "RotaryEmbedding",
    "Stacked",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]
