"""Layers of a transformer's encoder and decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, ClassVar, NamedTuple

from tvmfun import random
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.nn import functional
from tvmfun.nn.functional.arguments import training_key
from tvmfun.nn.init import Initializer
from tvmfun.nn.layers.attention import KVCache, MultiHeadAttention, RotaryEmbedding
from tvmfun.nn.layers.linear import Linear
from tvmfun.nn.layers.normalization import LayerNorm
from tvmfun.nn.layers.parameters import check_positive, layer
from tvmfun.typing import ArrayLike, DTypeLike, Key

__all__ = ["DecoderCache", "TransformerDecoderLayer", "TransformerEncoderLayer"]

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": functional.relu,
    "gelu": lambda x: functional.gelu(x, approximate=False),
}


@layer
class _TransformerLayer:
    """Base class of both kinds of layers: self-attention, the feed-forward network, and the residual connections."""

    attends_to_memory: ClassVar[bool] = False

    self_attn: MultiHeadAttention
    linear1: Linear
    linear2: Linear
    norm1: LayerNorm
    norm2: LayerNorm
    dropout: float = field(metadata={"static": True})
    activation: str | Callable[[Array], Array] = field(metadata={"static": True})
    norm_first: bool = field(metadata={"static": True})

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Array], Array] = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        num_kv_heads: int | None = None,
        rotary: RotaryEmbedding | None = None,
        key: Key,
        dtype: DTypeLike = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        where = type(self).__name__
        check_positive(where, d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        if not callable(activation) and activation not in _ACTIVATIONS:
            hint = '"relu", "gelu" or a function'
            raise ArgumentError(where, "unknown activation", got=repr(activation), hint=hint)
        settings = {"bias": bias, "dtype": dtype, "weight_init": weight_init, "bias_init": bias_init}
        attention = partial(MultiHeadAttention, d_model, nhead, dropout=dropout, num_kv_heads=num_kv_heads, **settings)
        norm = partial(LayerNorm, d_model, eps=layer_norm_eps, bias=bias, dtype=dtype)
        keys = random.split(key, 4)
        self.self_attn = attention(key=keys[0], rotary=rotary)
        self.linear1 = Linear(d_model, dim_feedforward, key=keys[1], **settings)
        self.linear2 = Linear(dim_feedforward, d_model, key=keys[2], **settings)
        self.norm1, self.norm2 = norm(), norm()
        self.dropout = dropout
        self.activation = activation
        self.norm_first = bool(norm_first)
        if self.attends_to_memory:
            self.multihead_attn = attention(key=keys[3])
            self.norm3 = norm()

    def _keys(self, key: Key | None, train: bool, count: int) -> Array | list[None]:
        """``count`` keys, one per dropout; None for each where nothing is dropped."""
        drops = bool(train and self.dropout)
        key = training_key(type(self).__name__, key, drops)
        if not drops or key is None:
            return [None] * count
        return random.split(key, count)

    def _residual(self, x: Any, norm: LayerNorm, sublayer: Callable[[Any], Array], key: Key | None) -> Array:
        """A sublayer with its residual connection; pre-norm normalizes its input, post-norm the sum."""
        drop = lambda y: functional.dropout(key, y, self.dropout, train=key is not None)
        return x + drop(sublayer(norm(x))) if self.norm_first else norm(x + drop(sublayer(x)))

    def _feed_forward(self, x: Array, key: Key | None) -> Array:
        activation = self.activation if callable(self.activation) else _ACTIVATIONS[self.activation]
        hidden = functional.dropout(key, activation(self.linear1(x)), self.dropout, train=key is not None)
        return self.linear2(hidden)


@layer
class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention and a feed-forward network, each with a residual connection and a layer normalization.

    With a causal mask this is also the layer of a decoder-only language model; :meth:`decode` computes the next tokens.

    Args:
        d_model: the number of features.
        nhead: the number of heads of the attention.
        dim_feedforward: the number of features in the hidden layer of the feed-forward network.
        dropout: the probability of zeroing, while training, an element of a sublayer's result or of the hidden layer
            of the feed-forward network, or a weight of the attention.
        activation: ``"relu"``, ``"gelu"`` (with the error function), or a function.
        layer_norm_eps: a small number added to variances.
        norm_first: pre-norm: normalize the input of each sublayer instead of its residual sum.
        bias: whether linear maps and normalizations add biases.
        num_kv_heads: the number of heads of keys and values, as for :class:`MultiHeadAttention`.
        rotary: the rotary position embedding of queries and keys.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for all matrices, instead of PyTorch's.
        bias_init: an initializer for the biases of the linear maps, instead of PyTorch's.

    Raises:
        ArgumentError: if a number is out of range, or the activation is unknown.
        DtypeError: if ``dtype`` is not a float.

    Reference: Vaswani et al., "Attention Is All You Need" (2017); Xiong et al., "On Layer Normalization in the
    Transformer Architecture" (2020) for ``norm_first``.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun import random
    >>> layer = TransformerEncoderLayer(8, 2, 16, key=random.key(0))
    >>> layer(tnp.ones((1, 5, 8)), is_causal=True, train=False).shape
    (1, 5, 8)
    """

    def __call__(
        self,
        x: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        is_causal: bool = False,
        seq_lengths: ArrayLike | None = None,
        local_window_size: int | tuple[int, int] | None = None,
        positions: ArrayLike | None = None,
        key: Key | None = None,
        train: bool = True,
    ) -> Array:
        """Maps sequences to sequences.

        Args:
            x: floats of shape (batch, length, d_model), or without the batch.
            mask: bools that broadcast to (batch, nhead, length, length): whether a position attends to another.
            is_causal: whether a position attends only to positions up to its own.
            seq_lengths: integers of shape (batch,); positions past these lengths are masked.
            local_window_size: how many positions before and after its own a position attends to.
            positions: the positions for rotary embeddings; 0, 1, 2 and so on by default.
            key: a key of :mod:`tvmfun.random` for the dropout, needed only if ``train``.
            train: whether to drop elements.

        Returns:
            An array like ``x``.

        Raises:
            ShapeError: if the shapes do not fit.
            ArgumentError: if the key of the dropout is missing.
        """
        keys = self._keys(key, train, 4)
        attend = lambda x: self.self_attn(
            x,
            mask=mask,
            is_causal=is_causal,
            key_value_seq_lengths=seq_lengths,
            local_window_size=local_window_size,
            positions=positions,
            key=keys[0],
            train=train,
        )
        x = self._residual(x, self.norm1, attend, keys[1])
        return self._residual(x, self.norm2, lambda x: self._feed_forward(x, keys[2]), keys[3])

    def init_cache(self, batch: int, length: int, dtype: DTypeLike | None = None) -> KVCache:
        """An empty cache for :meth:`decode`, for ``batch`` sequences of up to ``length`` positions."""
        return self.self_attn.init_cache(batch, length, dtype)

    def decode(
        self,
        x: ArrayLike,
        cache: KVCache,
        *,
        mask: ArrayLike | None = None,
        local_window_size: int | tuple[int, int] | None = None,
    ) -> tuple[Array, KVCache]:
        """The results of a causal call for the next positions, without dropout: :meth:`MultiHeadAttention.decode`."""

        def attend(x: Array) -> Array:
            nonlocal cache
            y, cache = self.self_attn.decode(x, cache, mask=mask, local_window_size=local_window_size)
            return y

        x = self._residual(x, self.norm1, attend, None)
        return self._residual(x, self.norm2, lambda x: self._feed_forward(x, None), None), cache


class DecoderCache(NamedTuple):
    """The cache of a decoder layer: keys and values of its self-attention so far, and of the memory."""

    own: KVCache
    memory: KVCache


@layer
class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to a memory and a feed-forward network, each with a residual and a normalization.

    Args:
        d_model: the number of features, also of the memory.
        nhead: the number of heads of both attentions.
        dim_feedforward: the number of features in the hidden layer of the feed-forward network.
        dropout: the probability of zeroing, while training, an element of a sublayer's result or of the hidden layer
            of the feed-forward network, or a weight of the attention.
        activation: ``"relu"``, ``"gelu"`` (with the error function), or a function.
        layer_norm_eps: a small number added to variances.
        norm_first: pre-norm: normalize the input of each sublayer instead of its residual sum.
        bias: whether linear maps and normalizations add biases.
        num_kv_heads: the number of heads of keys and values, as for :class:`MultiHeadAttention`.
        rotary: the rotary position embedding of queries and keys in the self-attention.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for all matrices, instead of PyTorch's.
        bias_init: an initializer for the biases of the linear maps, instead of PyTorch's.

    Raises:
        ArgumentError: if a number is out of range, or the activation is unknown.
        DtypeError: if ``dtype`` is not a float.

    Reference: Vaswani et al., "Attention Is All You Need" (2017).

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun import random
    >>> layer = TransformerDecoderLayer(8, 2, 16, key=random.key(0))
    >>> layer(tnp.ones((1, 5, 8)), tnp.ones((1, 7, 8)), is_causal=True, train=False).shape
    (1, 5, 8)
    """

    attends_to_memory: ClassVar[bool] = True

    multihead_attn: MultiHeadAttention
    norm3: LayerNorm

    def __call__(
        self,
        x: ArrayLike,
        memory: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        memory_mask: ArrayLike | None = None,
        is_causal: bool = False,
        memory_is_causal: bool = False,
        seq_lengths: ArrayLike | None = None,
        memory_seq_lengths: ArrayLike | None = None,
        positions: ArrayLike | None = None,
        key: Key | None = None,
        train: bool = True,
    ) -> Array:
        """Maps sequences to sequences, attending to a memory.

        Args:
            x: floats of shape (batch, length, d_model), or without the batch.
            memory: the encoder's results, of shape (batch, other length, d_model).
            mask: bools that broadcast to (batch, nhead, length, length): whether a position attends to another.
            memory_mask: the mask of the memory, (batch, nhead, length, other length).
            is_causal: whether a position attends only to positions up to its own.
            memory_is_causal: whether a position attends only to positions of the memory up to its own.
            seq_lengths: integers of shape (batch,); positions past these lengths are masked.
            memory_seq_lengths: integers of shape (batch,); positions of the memory past these lengths are masked.
            positions: the positions of ``x`` for rotary embeddings; 0, 1, 2 and so on by default.
            key: a key of :mod:`tvmfun.random` for the dropout, needed only if ``train``.
            train: whether to drop elements.

        Returns:
            An array like ``x``.

        Raises:
            ShapeError: if the shapes do not fit.
            ArgumentError: if the key of the dropout is missing.
        """
        keys = self._keys(key, train, 6)
        attend = lambda x: self.self_attn(
            x,
            mask=mask,
            is_causal=is_causal,
            key_value_seq_lengths=seq_lengths,
            positions=positions,
            key=keys[0],
            train=train,
        )
        look = lambda x: self.multihead_attn(
            x,
            memory,
            mask=memory_mask,
            is_causal=memory_is_causal,
            key_value_seq_lengths=memory_seq_lengths,
            key=keys[1],
            train=train,
        )
        x = self._residual(x, self.norm1, attend, keys[2])
        x = self._residual(x, self.norm2, look, keys[3])
        return self._residual(x, self.norm3, lambda x: self._feed_forward(x, keys[4]), keys[5])

    def init_cache(self, memory: Array, length: int, dtype: DTypeLike | None = None) -> DecoderCache:
        """A cache for :meth:`decode` of up to ``length`` positions, with the keys and values of the memory."""
        own = self.self_attn.init_cache(memory.shape[0], length, dtype)
        return DecoderCache(own, self.multihead_attn.context_cache(memory))

    def decode(
        self,
        x: ArrayLike,
        cache: DecoderCache,
        *,
        mask: ArrayLike | None = None,
        memory_mask: ArrayLike | None = None,
        memory_seq_lengths: ArrayLike | None = None,
    ) -> tuple[Array, DecoderCache]:
        """The results of a causal call for the next positions, without dropout: :meth:`MultiHeadAttention.decode`."""
        own, memory = cache

        def attend(x: Array) -> Array:
            nonlocal own
            y, own = self.self_attn.decode(x, own, mask=mask)
            return y

        look = lambda x: self.multihead_attn.attend(
            x, memory, mask=memory_mask, key_value_seq_lengths=memory_seq_lengths
        )
        x = self._residual(x, self.norm1, attend, None)
        x = self._residual(x, self.norm2, look, None)
        return self._residual(x, self.norm3, lambda x: self._feed_forward(x, None), None), DecoderCache(own, memory)
