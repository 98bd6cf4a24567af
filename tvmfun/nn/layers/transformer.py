"""Transformers: layers, stacks of them, and the encoder and decoder together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import lax, random, tree
from tvmfun.errors import ArgumentError
from tvmfun.nn import functional, init
from tvmfun.nn.init import Initializer
from tvmfun.nn.layers.attention import KVCache, MultiHeadAttention, RotaryEmbedding
from tvmfun.nn.layers.linear import Linear
from tvmfun.nn.layers.normalization import LayerNorm
from tvmfun.nn.layers.parameters import check_positive, layer
from tvmfun.nn.state import has_state
from tvmfun.transforms import checkpoint as rematerialized

__all__ = [
    "DecoderCache",
    "Stacked",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": functional.relu,
    "gelu": lambda x: functional.gelu(x, approximate=False),
}


@dataclass(frozen=True, init=False, eq=False)
class _Layer:
    """What both kinds of layers share: the parts besides attention."""

    self_attn: MultiHeadAttention
    linear1: Linear
    linear2: Linear
    norm1: LayerNorm
    norm2: LayerNorm
    dropout: float = field(metadata={"static": True})
    activation: str | Callable[[Any], Any] = field(metadata={"static": True})
    norm_first: bool = field(metadata={"static": True})

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _set_parts(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float,
        activation: str | Callable[[Any], Any],
        layer_norm_eps: float,
        norm_first: bool,
        bias: bool,
        num_kv_heads: int | None,
        rotary: RotaryEmbedding | None,
        key: Any,
        dtype: Any,
        weight_init: Initializer | None,
        bias_init: Initializer | None,
    ) -> None:
        where = type(self).__name__
        check_positive(where, d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        if not callable(activation) and activation not in _ACTIVATIONS:
            hint = '"relu", "gelu" or a function'
            raise ArgumentError(where, "unknown activation", got=repr(activation), hint=hint)
        keys = random.split(key, 4)
        settings = {"bias": bias, "dtype": dtype, "weight_init": weight_init, "bias_init": bias_init}

        def attention(key: Any, **others: Any) -> MultiHeadAttention:
            return MultiHeadAttention(d_model, nhead, dropout=dropout, key=key, **settings, **others)

        self._set(
            self_attn=attention(keys[0], num_kv_heads=num_kv_heads, rotary=rotary),
            linear1=Linear(d_model, dim_feedforward, key=keys[1], **settings),
            linear2=Linear(dim_feedforward, d_model, key=keys[2], **settings),
            dropout=dropout,
            activation=activation,
            norm_first=bool(norm_first),
        )
        norms = ["norm1", "norm2"]
        if isinstance(self, TransformerDecoderLayer):
            self._set(multihead_attn=attention(keys[3], num_kv_heads=num_kv_heads))
            norms.append("norm3")
        self._set(**{name: LayerNorm(d_model, eps=layer_norm_eps, bias=bias, dtype=dtype) for name in norms})

    def _keys(self, key: Any, train: bool, count: int) -> Any:
        """A key for each place where something is dropped; None everywhere if nothing is."""
        if not train or not self.dropout:
            return [None] * count
        if key is None:
            hint = "key=random.key(0), or train=False"
            raise ArgumentError(type(self).__name__, "a key is needed for training", got="None", hint=hint)
        return random.split(key, count)

    def _around(self, x: Any, norm: LayerNorm, part: Callable[[Any], Any], key: Any) -> Any:
        """The residual connection around a part, with the normalization before the part or behind the sum."""
        drop = lambda y: functional.dropout(key, y, self.dropout, train=key is not None)
        return x + drop(part(norm(x))) if self.norm_first else norm(x + drop(part(x)))

    def _feed_forward(self, x: Any, key: Any) -> Any:
        activation = self.activation if callable(self.activation) else _ACTIVATIONS[self.activation]
        hidden = functional.dropout(key, activation(self.linear1(x)), self.dropout, train=key is not None)
        return self.linear2(hidden)


@layer
class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward network, each with a residual connection and a layer normalization.

    With a causal mask this is also the layer of a language model, and :meth:`decode` its step for the next word.

    Args:
        d_model: the number of features.
        nhead: the number of heads of the attention.
        dim_feedforward: the number of features in the middle of the feed-forward network.
        dropout: the probability with which an element of a part's result, of the feed-forward network's middle, or a
            weight of the attention is zeroed while training.
        activation: ``"relu"``, ``"gelu"`` (with the error function), or a function.
        layer_norm_eps: what is added to variances.
        norm_first: whether to normalize before each part, and not behind the sums.
        bias: whether linear maps and normalizations add biases.
        num_kv_heads: the number of heads of keys and values, as for :class:`MultiHeadAttention`.
        rotary: turns queries and keys by their positions.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for all matrices, instead of PyTorch's.
        bias_init: one for the biases of the linear maps.

    Raises:
        ArgumentError: if a number is not what it must be, or the activation is unknown.
        DtypeError: if ``dtype`` is not a float.

    Reference: Vaswani et al., "Attention Is All You Need" (2017); Xiong et al., "On Layer Normalization in the
    Transformer Architecture" (2020) for ``norm_first``.

    >>> layer = TransformerEncoderLayer(8, 2, 16, key=random.key(0))
    >>> layer(tnp.ones((1, 5, 8)), is_causal=True, train=False).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        num_kv_heads: int | None = None,
        rotary: RotaryEmbedding | None = None,
        key: Any,
        dtype: Any = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        sizes = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias)
        self._set_parts(*sizes, num_kv_heads, rotary, key, dtype, weight_init, bias_init)

    def __call__(
        self,
        x: Any,
        *,
        mask: Any = None,
        is_causal: bool = False,
        seq_lengths: Any = None,
        local_window_size: int | tuple[int, int] | None = None,
        positions: Any = None,
        key: Any = None,
        train: bool = True,
    ) -> Any:
        """Maps sequences to sequences.

        Args:
            x: floats of shape (batch, length, d_model), or without the batch.
            mask: bools that broadcast to (batch, nhead, length, length); a position sees another where it is true.
            is_causal: whether a position sees only those that are not behind it.
            seq_lengths: integers of shape (batch,); positions behind these are not seen.
            local_window_size: how many places before and behind its own a position sees.
            positions: where rotary embeddings think the elements are; 0, 1, 2 and so on by default.
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
        x = self._around(x, self.norm1, attend, keys[1])
        return self._around(x, self.norm2, lambda x: self._feed_forward(x, keys[2]), keys[3])

    def init_cache(self, batch: int, length: int, dtype: Any = None) -> KVCache:
        """An empty cache for :meth:`decode`, for so many sequences and positions."""
        return self.self_attn.init_cache(batch, length, dtype)

    def decode(
        self,
        x: Any,
        cache: KVCache,
        *,
        mask: Any = None,
        local_window_size: int | tuple[int, int] | None = None,
    ) -> tuple[Any, KVCache]:
        """What a causal call gives for the next positions, without dropout; see :meth:`MultiHeadAttention.decode`."""

        def attend(x: Any) -> Any:
            nonlocal cache
            y, cache = self.self_attn.decode(x, cache, mask=mask, local_window_size=local_window_size)
            return y

        x = self._around(x, self.norm1, attend, None)
        return self._around(x, self.norm2, lambda x: self._feed_forward(x, None), None), cache


class DecoderCache(NamedTuple):
    """What a decoder layer keeps: its own keys and values so far, and those of the memory."""

    own: KVCache
    memory: KVCache


@layer
class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to a memory and a feed-forward network, each with a residual and a normalization.

    Args:
        d_model: the number of features, also of the memory.
        nhead: the number of heads of both attentions.
        dim_feedforward: the number of features in the middle of the feed-forward network.
        dropout: the probability with which an element of a part's result, of the feed-forward network's middle, or a
            weight of the attention is zeroed while training.
        activation: ``"relu"``, ``"gelu"`` (with the error function), or a function.
        layer_norm_eps: what is added to variances.
        norm_first: whether to normalize before each part, and not behind the sums.
        bias: whether linear maps and normalizations add biases.
        num_kv_heads: the number of heads of keys and values, as for :class:`MultiHeadAttention`.
        rotary: turns queries and keys of the self-attention by their positions.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for all matrices, instead of PyTorch's.
        bias_init: one for the biases of the linear maps.

    Raises:
        ArgumentError: if a number is not what it must be, or the activation is unknown.
        DtypeError: if ``dtype`` is not a float.

    Reference: Vaswani et al., "Attention Is All You Need" (2017).

    >>> layer = TransformerDecoderLayer(8, 2, 16, key=random.key(0))
    >>> layer(tnp.ones((1, 5, 8)), tnp.ones((1, 7, 8)), is_causal=True, train=False).shape
    (1, 5, 8)
    """

    multihead_attn: MultiHeadAttention
    norm3: LayerNorm

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        num_kv_heads: int | None = None,
        rotary: RotaryEmbedding | None = None,
        key: Any,
        dtype: Any = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        sizes = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias)
        self._set_parts(*sizes, num_kv_heads, rotary, key, dtype, weight_init, bias_init)

    def __call__(
        self,
        x: Any,
        memory: Any,
        *,
        mask: Any = None,
        memory_mask: Any = None,
        is_causal: bool = False,
        memory_is_causal: bool = False,
        seq_lengths: Any = None,
        memory_seq_lengths: Any = None,
        positions: Any = None,
        key: Any = None,
        train: bool = True,
    ) -> Any:
        """Maps sequences to sequences, looking at a memory.

        Args:
            x: floats of shape (batch, length, d_model), or without the batch.
            memory: the encoder's results, of shape (batch, other length, d_model).
            mask: bools that broadcast to (batch, nhead, length, length); a position sees another where it is true.
            memory_mask: the same for the memory, (batch, nhead, length, other length).
            is_causal: whether a position sees only those that are not behind it.
            memory_is_causal: the same for the memory.
            seq_lengths: integers of shape (batch,); positions behind these are not seen.
            memory_seq_lengths: the same for the memory.
            positions: where rotary embeddings think the elements of ``x`` are; 0, 1, 2 and so on by default.
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
        x = self._around(x, self.norm1, attend, keys[2])
        x = self._around(x, self.norm2, look, keys[3])
        return self._around(x, self.norm3, lambda x: self._feed_forward(x, keys[4]), keys[5])

    def init_cache(self, memory: Any, length: int, dtype: Any = None) -> DecoderCache:
        """A cache for :meth:`decode` of so many positions, with the keys and values of the memory in it."""
        own = self.self_attn.init_cache(memory.shape[0], length, dtype)
        return DecoderCache(own, self.multihead_attn.context_cache(memory))

    def decode(
        self,
        x: Any,
        cache: DecoderCache,
        *,
        mask: Any = None,
        memory_mask: Any = None,
        memory_seq_lengths: Any = None,
    ) -> tuple[Any, DecoderCache]:
        """What a causal call gives for the next positions, without dropout; see :meth:`MultiHeadAttention.decode`."""
        own, memory = cache

        def attend(x: Any) -> Any:
            nonlocal own
            y, own = self.self_attn.decode(x, own, mask=mask)
            return y

        look = lambda x: self.multihead_attn.attend(
            x, memory, mask=memory_mask, key_value_seq_lengths=memory_seq_lengths
        )
        x = self._around(x, self.norm1, attend, None)
        x = self._around(x, self.norm2, look, None)
        return self._around(x, self.norm3, lambda x: self._feed_forward(x, None), None), DecoderCache(own, memory)


# -- stacks ----------------------------------------------------------------------------------------------------


@layer
class Stacked:
    """Equal layers one after the other, as one layer whose parameters are stacked along a new first axis.

    They run in a loop, so that the Program, its memory plan and the time to compile do not grow with their number.
    That pays from some thirty layers on: equal layers share their kernels anyway, and one after the other they are
    a few percent faster.

    Args:
        layers: layers that map an array to one of the same shape and differ in nothing but their parameters.
        checkpoint: whether to keep only each layer's input for the derivative, and compute the rest again.

    Raises:
        ArgumentError: if there are no layers.
        TreeError: if they differ.

    >>> from tvmfun.nn import Linear
    >>> model = Stacked([Linear(3, 3, key=random.key(i)) for i in range(12)])
    >>> model.layer.weight.shape, model(tnp.ones((2, 3))).shape
    ((12, 3, 3), (2, 3))
    """

    layer: Any
    count: int = field(metadata={"static": True})
    checkpoint: bool = field(metadata={"static": True})

    def __init__(self, layers: Sequence[Any], *, checkpoint: bool = False) -> None:
        if not layers:
            raise ArgumentError("Stacked", "there must be layers", got=repr(layers))
        if has_state(layers[0]):
            what = "layers with a state cannot be stacked"
            raise ArgumentError("Stacked", what, got=type(layers[0]).__name__, hint="nn.Sequential")
        for i, part in enumerate(layers):
            tree.check_same_structure("Stacked", layers[0], part, ("the first layer", f"layer {i}"))
        object.__setattr__(self, "layer", tree.map(lambda *leaves: tnp.stack(leaves), *layers))
        object.__setattr__(self, "count", len(layers))
        object.__setattr__(self, "checkpoint", checkpoint)

    def __call__(self, x: Any, *args: Any, key: Any = None, train: bool = True, **settings: Any) -> Any:
        """Calls ``layer(x, *args, **settings)`` of each, with a key of its own and ``train`` if layers take them."""
        takes = signature(self.layer).parameters
        settings |= {"train": train} if "train" in takes else {}
        keys = None if key is None or "key" not in takes else random.split(key, self.count)

        def step(x: Any, part: tuple) -> tuple[Any, None]:
            layer, key = part
            return layer(x, *args, **({} if key is None else {"key": key}), **settings), None

        return lax.scan(rematerialized(step) if self.checkpoint else step, x, (self.layer, keys))[0]

    def __len__(self) -> int:
        """The number of layers."""
        return self.count

    def __iter__(self) -> Iterator[Any]:
        """The layers one by one, with their own parameters."""
        return (tree.map(lambda leaf, i=i: leaf[i], self.layer) for i in range(self.count))


@dataclass(frozen=True, init=False, eq=False)
class _Stack:
    """What both stacks share."""

    layers: tuple[Any, ...] | Stacked
    norm: Any

    def __init__(self, layers: Sequence[Any] | Stacked, norm: Any = None) -> None:
        object.__setattr__(self, "layers", layers if isinstance(layers, Stacked) else tuple(layers))
        object.__setattr__(self, "norm", norm)

    def _run(self, x: Any, *args: Any, key: Any, **settings: Any) -> Any:
        if isinstance(self.layers, Stacked):
            x = self.layers(x, *args, key=key, **settings)
        else:
            keys = [None] * len(self.layers) if key is None else random.split(key, len(self.layers))
            for i, layer in enumerate(self.layers):
                x = layer(x, *args, key=keys[i], **settings)
        return x if self.norm is None else self.norm(x)

    def _decode(self, x: Any, caches: Sequence[Any], settings: dict[str, Any]) -> tuple[Any, tuple]:
        news = []
        for part, cache in zip(self.layers, caches, strict=True):
            x, new = part.decode(x, cache, **settings)
            news.append(new)
        return x if self.norm is None else self.norm(x), tuple(news)


@layer
class TransformerEncoder(_Stack):
    """Encoder layers one after the other.

    Args:
        layers: the layers; or all of them as one, :class:`Stacked`.
        norm: a normalization for the result, or None.

    >>> layers = [TransformerEncoderLayer(8, 2, 16, key=random.key(i)) for i in range(2)]
    >>> for model in (TransformerEncoder(layers), TransformerEncoder(Stacked(layers))):
    ...     print(model(tnp.ones((1, 5, 8)), is_causal=True, train=False).shape)
    (1, 5, 8)
    (1, 5, 8)
    """

    def __call__(self, x: Any, *, key: Any = None, train: bool = True, **settings: Any) -> Any:
        """Calls one layer after the other, with arguments as for :class:`TransformerEncoderLayer`."""
        return self._run(x, key=key, train=train, **settings)

    def init_cache(self, batch: int, length: int, dtype: Any = None) -> tuple[KVCache, ...]:
        """Empty caches for :meth:`decode`, for so many sequences and positions."""
        return tuple(layer.init_cache(batch, length, dtype) for layer in self.layers)

    def decode(self, x: Any, caches: Sequence[KVCache], **settings: Any) -> tuple[Any, tuple[KVCache, ...]]:
        """What a causal call gives for the next positions, with arguments as for :class:`TransformerEncoderLayer`."""
        return self._decode(x, caches, settings)


@layer
class TransformerDecoder(_Stack):
    """Decoder layers one after the other.

    Args:
        layers: the layers; or all of them as one, :class:`Stacked`.
        norm: a normalization for the result, or None.

    >>> layers = [TransformerDecoderLayer(8, 2, 16, key=random.key(i)) for i in range(2)]
    >>> model = TransformerDecoder(layers, LayerNorm(8))
    >>> model(tnp.ones((1, 5, 8)), tnp.ones((1, 7, 8)), is_causal=True, train=False).shape
    (1, 5, 8)
    """

    def __call__(self, x: Any, memory: Any, *, key: Any = None, train: bool = True, **settings: Any) -> Any:
        """Calls one layer after the other, with arguments as for :class:`TransformerDecoderLayer`."""
        return self._run(x, memory, key=key, train=train, **settings)

    def init_cache(self, memory: Any, length: int, dtype: Any = None) -> tuple[DecoderCache, ...]:
        """Caches for :meth:`decode` of so many positions, with the keys and values of the memory in them."""
        return tuple(layer.init_cache(memory, length, dtype) for layer in self.layers)

    def decode(self, x: Any, caches: Sequence[DecoderCache], **settings: Any) -> tuple[Any, tuple[DecoderCache, ...]]:
        """What a causal call gives for the next positions, with arguments as for :class:`TransformerDecoderLayer`."""
        return self._decode(x, caches, settings)


@layer
class Transformer:
    """An encoder and a decoder that looks at its results, both with a normalization at the end.

    Matrices begin with Glorot's uniform distribution, as in PyTorch.

    Args:
        d_model: the number of features.
        nhead: the number of heads.
        num_encoder_layers: the number of layers of the encoder.
        num_decoder_layers: that of the decoder.
        dim_feedforward: the number of features in the middle of feed-forward networks.
        dropout: the probability with which elements are zeroed while training.
        activation: ``"relu"``, ``"gelu"`` (with the error function), or a function.
        layer_norm_eps: what is added to variances.
        norm_first: whether to normalize before each part, and not behind the sums.
        bias: whether linear maps and normalizations add biases.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for all matrices, instead of Glorot's.
        bias_init: one for the biases of the linear maps.

    Raises:
        ArgumentError: if a number is not what it must be, or the activation is unknown.
        DtypeError: if ``dtype`` is not a float.

    Reference: Vaswani et al., "Attention Is All You Need" (2017).

    >>> model = Transformer(8, 2, 1, 1, 16, key=random.key(0))
    >>> model(tnp.ones((1, 7, 8)), tnp.ones((1, 5, 8)), tgt_is_causal=True, train=False).shape
    (1, 5, 8)
    """

    encoder: TransformerEncoder
    decoder: TransformerDecoder

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        key: Any,
        dtype: Any = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        check_positive("Transformer", num_encoder_layers=num_encoder_layers, num_decoder_layers=num_decoder_layers)
        sizes = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias)
        settings = {"dtype": dtype, "bias_init": bias_init}
        settings["weight_init"] = init.glorot_uniform() if weight_init is None else weight_init
        keys = random.split(key, num_encoder_layers + num_decoder_layers)

        def make(stack: Any, layer: Any, first: int, count: int) -> Any:
            layers = [layer(*sizes, key=keys[i], **settings) for i in range(first, first + count)]
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, dtype=dtype)
            return stack(layers, norm)

        encoder = make(TransformerEncoder, TransformerEncoderLayer, 0, num_encoder_layers)
        decoder = make(TransformerDecoder, TransformerDecoderLayer, num_encoder_layers, num_decoder_layers)
        object.__setattr__(self, "encoder", encoder)
        object.__setattr__(self, "decoder", decoder)

    def __call__(
        self,
        src: Any,
        tgt: Any,
        *,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        src_seq_lengths: Any = None,
        tgt_seq_lengths: Any = None,
        key: Any = None,
        train: bool = True,
    ) -> Any:
        """Maps a source and a target to a sequence as long as the target.

        Args:
            src: floats of shape (batch, source length, d_model), or without the batch.
            tgt: floats of shape (batch, target length, d_model).
            src_mask: bools that broadcast to (batch, nhead, source length, source length); a position of the source
                sees another where it is true. (PyTorch's bools say where one does *not*.)
            tgt_mask: the same for the target.
            memory_mask: the same for what the target sees of the source.
            src_is_causal: whether a position of the source sees only those that are not behind it.
            tgt_is_causal: the same for the target.
            memory_is_causal: the same for what the target sees of the source.
            src_seq_lengths: integers of shape (batch,); what is behind these in the source is not seen, neither by
                the source nor by the target.
            tgt_seq_lengths: the same for what the target sees of itself.
            key: a key of :mod:`tvmfun.random` for the dropout, needed only if ``train``.
            train: whether to drop elements.

        Returns:
            An array like ``tgt``.

        Raises:
            ShapeError: if the shapes do not fit.
            ArgumentError: if the key of the dropout is missing.
        """
        first, second = (None, None) if key is None else random.split(key)
        memory = self.encoder(
            src, mask=src_mask, is_causal=src_is_causal, seq_lengths=src_seq_lengths, key=first, train=train
        )
        return self.decoder(
            tgt,
            memory,
            mask=tgt_mask,
            memory_mask=memory_mask,
            is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
            seq_lengths=tgt_seq_lengths,
            memory_seq_lengths=src_seq_lengths,
            key=second,
            train=train,
        )
